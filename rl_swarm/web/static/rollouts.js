// Read what the models write: question, every completion, reward and advantage, and who trained on it.

import { ask } from "./api.js";
import { fill, h, number, state, whole } from "./dom.js";
import { shade } from "./overview.js";

const PAGE = 10;

export async function open({ experiment, params, link }) {
  const list = h("div", { class: "rollouts" });
  const more = h("p", { class: "tools" });
  const fresh = h("p", { class: "tools", role: "status" });
  const wanted = { node: params.node, round: params.round, task: params.task, min_reward: params.min_reward, max_reward: params.max_reward, id: params.id };
  const form = h("div");
  let newest = null;
  let nothing = true; // nothing fits so far, and there is nowhere further to look

  async function page(start) {
    const found = await ask("rollouts", { experiment, ...wanted, start, limit: PAGE });
    newest = found.newest_round;
    if (!start || !list.querySelector(".rollout")) fill(list);
    for (const each of found.rollouts) list.append(shown(each, Boolean(wanted.id), experiment, link));
    if (!list.childElementCount) fill(list, none(wanted, found.next));
    nothing = !found.next && !list.querySelector(".rollout");
    fill(more, found.next && button("Show older ones", () => page(found.next)));
    return found.tasks;
  }
  async function begin() {
    const [{ peers }, tasks] = await Promise.all([ask("peers", { experiment }), page(null)]);
    fill(form, filters(wanted, peers.filter((peer) => peer.role === "worker"), tasks, experiment, link));
  }
  // A button for a further page. It stays usable if the page cannot be had.
  function button(word, load) {
    const problem = h("span", { class: "wrong", role: "status" });
    const made = h("button", { type: "button" }, word);
    made.addEventListener("click", () => {
      made.disabled = true;
      load().catch((error) => { made.disabled = false; fill(problem, error.message); });
    });
    return [made, problem];
  }
  await begin();
  return {
    element: h("div", null, form, fresh, marks(), list, more),
    refresh: async (event) => {
      if (wanted.id) return;
      if (nothing) await (newest === null ? begin() : page(null));
      else if (!wanted.round && event.rounds_done - 1 > newest && !fresh.childElementCount) {
        fill(fresh, button("There is a new round: show it", async () => { await page(null); fill(fresh); }));
      }
    },
  };
}

const MARKS = { good: "●", partly: "◐", wrong: "○" };
const mark = (kind, title = null) => h("span", { class: kind, title }, MARKS[kind]);

// What the marks of the completions mean.
function marks() {
  const said = { good: "right", partly: "right in part, or not in <answer>", wrong: "wrong" };
  return h("p", { class: "readout", "aria-hidden": "true" }, Object.entries(said).map(([kind, meaning]) => h("span", null, mark(kind), ` ${meaning}`)));
}

function filters(wanted, workers, tasks, experiment, link) {
  const option = (value, name, chosen) => h("option", { value, selected: value === (chosen || "") }, name);
  const names = [...new Set([...tasks, ...(wanted.task ? [wanted.task] : [])])];
  const form = h("form", { class: "filters card", "aria-label": "Which rollouts" },
    h("label", null, "Node", h("select", { name: "node" }, option("", "all", wanted.node), workers.map((each) => option(each.id, each.id, wanted.node)))),
    h("label", null, "Round", h("input", { name: "round", type: "number", min: 0, max: 999999, placeholder: "newest", value: wanted.round })),
    h("label", null, "Task", h("select", { name: "task" }, option("", "all", wanted.task), names.map((name) => option(name, name, wanted.task)))),
    h("label", null, "Mean reward from", h("input", { name: "min_reward", type: "number", step: "any", placeholder: "any", value: wanted.min_reward })),
    h("label", null, "to", h("input", { name: "max_reward", type: "number", step: "any", placeholder: "any", value: wanted.max_reward })),
    h("button", { type: "submit" }, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = link("rollouts", { experiment, ...Object.fromEntries(new FormData(form)) });
  });
  return form;
}

function none(wanted, next) {
  const filtered = Object.values(wanted).some(Boolean);
  if (next) return state("None among the newest rounds", "Older rounds were not looked at yet: 'Show older ones' goes on.");
  return state("No rollouts", filtered ? "Nothing fits these filters, or it was removed since (ROLLOUT_CLEANUP_ENABLED): widen them, or choose another round." : "No node has published any yet. They appear with the first round.");
}

function shown(rollout, wholly, experiment, link) {
  const details = h("details", { class: "card rollout", open: wholly });
  const rewards = rollout.completions.map((each) => mark(shade(each.verdict), number(each.reward, 2)));
  details.append(h("summary", null,
    h("span", { class: "asked" }, rollout.prompt.slice(0, 160)),
    h("span", { class: "faint" }, `${rollout.name} · ${rollout.node} · round ${rollout.round} · ${rollout.task} · mean reward ${number(rollout.reward, 2)}${rollout.informative ? "" : " · uninformative"} `),
    h("span", { class: "dots", "aria-hidden": "true" }, rewards)));
  details.append(h("div", { class: "inside" },
    h("h3", null, "Question"), h("pre", null, rollout.prompt), rollout.cut && cut(rollout, experiment, link),
    h("p", null, "Expected answer: ", rollout.expected === null ? h("span", { class: "faint" }, "the verifier decides") : h("code", null, rollout.expected)),
    h("h3", null, `Completions (${rollout.completions.length})`),
    h("ol", { class: "completions" }, rollout.completions.map((each) => h("li", null,
      h("p", null, h("b", { class: shade(each.verdict) }, each.verdict), ` · reward ${number(each.reward, 2)} · advantage ${each.advantage > 0 ? "+" : ""}${number(each.advantage, 2)} · parsed `,
        each.parsed === null ? h("span", { class: "faint" }, "nothing") : h("code", null, each.parsed), ` · ${whole(each.tokens)} tokens${each.finish === "length" ? ", cut at MAX_NEW_TOKENS" : ""}`),
      h("pre", null, each.text || "(nothing)"), each.cut && cut(rollout, experiment, link)))),
    h("h3", null, "Who trained on it"),
    h("p", null, `Written by ${rollout.name} (${rollout.node}), ${rollout.informative ? "who trained on it. " : "who could not: it is uninformative. "}`,
      rollout.trained_by.length ? ["Peers: ", rollout.trained_by.map((each, place) => [place ? ", " : "", `${each.name} (${each.id}) in round ${each.round}`])] : "No peer so far, as far as is known."),
    h("p", { class: "faint" }, "Id ", h("a", { href: link("rollouts", { experiment, id: rollout.id }) }, rollout.id))));
  return details;
}

function cut(rollout, experiment, link) {
  return h("p", null, h("a", { href: link("rollouts", { experiment, id: rollout.id }) }, "shortened here: show the whole text"));
}
