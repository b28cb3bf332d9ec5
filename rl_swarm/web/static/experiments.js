// All experiments in the store.

import { ask } from "./api.js";
import { ago, counted, h, NOTHING, number, renew, state, whole } from "./dom.js";

export function none() {
  return state("No experiment yet", "This store holds none. Start one, and it appears here by itself:", h("pre", null, "rl-swarm demo\nrl-swarm swarm --workers 2 --experiment first --model-name nano"));
}

export async function open({ link }) {
  const list = h("div", { class: "cards" });
  async function load() {
    const found = await ask("experiments");
    renew(list, found.experiments.length ? found.experiments.map((each) => card(each, link)) : none(),
      found.left_out ? h("p", { class: "faint" }, `and ${whole(found.left_out)} more`) : null);
  }
  await load();
  return { element: list, refresh: load, several: true };
}

function card(each, link) {
  const known = each.status !== "unknown" && each.status !== "refused";
  return h("article", { class: "card" },
    h("h2", null, known ? h("a", { href: link("overview", { experiment: each.name }) }, each.name) : each.name),
    h("p", null, h("span", { class: `badge ${each.status}` }, each.status), ` ${each.model}`, each.own_wanted === null ? "" : ` · I/J ${each.own_wanted}/${each.external_wanted}`),
    known ? h("progress", { max: 1, value: each.max_rounds ? Math.min(1, each.rounds_done / each.max_rounds) : 0, "aria-label": `rounds of ${each.name}` }) : null,
    h("p", { class: "faint" }, known ? `${whole(each.rounds_done)}${each.max_rounds ? ` of ${whole(each.max_rounds)}` : ""} rounds · ${counted(each.workers, "worker")} · reward ${number(each.reward)} · last round ${each.last_round_at ? `${ago(each.last_round_at)} ago` : NOTHING}`
      : each.detail || "not looked at yet"));
}
