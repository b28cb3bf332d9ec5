// Several experiments on one axis, such as the splits of the paper's table.

import { ask } from "./api.js";
import { Chart, joined, nodeColour, smooth } from "./charts.js";
import { fill, h, NOTHING, number, percent, section, state, table, whole } from "./dom.js";

const MOST = 8;
const SPAN = 5;

export async function open({ params, known, experiment, link, isCurrent }) {
  const usable = known.filter((each) => each.rounds_done > 0);
  if (!usable.length) return { element: state("Nothing to compare yet", "Experiments appear here with their first round.") };
  const wanted = (params.with || "").split(",").filter(Boolean);
  const chosen = new Set(wanted.length ? wanted : usable.slice(0, 4).map((each) => each.name));
  const rewards = new Chart("Reward of own completions, mean of the nodes", "Mean of 5 rounds; bands go from the lowest node to the highest.", { wide: true, height: 340 });
  const sums = new Chart("Cumulative reward of a node", "The sum so far, mean of the nodes: the paper's figure.", { digits: 1 });
  const held = new Chart("Held-out accuracy, as the verifier reads", "Mean of the nodes.");
  const figures = h("div");
  const boxes = h("fieldset", { class: "card choose" }, h("legend", null, "Experiments"), usable.map((each) => {
    const box = h("input", { type: "checkbox", value: each.name, checked: chosen.has(each.name) });
    box.addEventListener("change", () => {
      if (box.checked && chosen.size >= MOST) { box.checked = false; return; }
      if (box.checked) chosen.add(each.name); else chosen.delete(each.name);
      history.replaceState(null, "", link("compare", { experiment, with: [...chosen].join(",") }));
      load().then(draw);
    });
    return h("label", null, box, ` ${each.name}`, h("span", { class: "faint" }, each.own_wanted === null ? "" : ` ${each.own_wanted}/${each.external_wanted}`));
  }));
  let runs = [];

  async function load() {
    const names = usable.map((each) => each.name).filter((name) => chosen.has(name));
    runs = await Promise.all(names.map(async (name) => {
      const [round, history, metrics] = await Promise.all([ask("round_and_stage", { experiment: name }), ask("rewards-history", { experiment: name }),
        ask("metrics", { experiment: name, figure: ["reward", "tokens"] })]);
      return { name, round, history, metrics };
    }));
    if (isCurrent()) fill(figures, runs.length ? compared(runs) : state("Choose experiments", "Tick at least one above."));
  }
  function draw() {
    if (!isCurrent()) return;
    drawRewards(rewards, runs);
    const place = (name) => usable.findIndex((each) => each.name === name);
    const totals = runs.map((run) => { let sum = 0; return run.history.mean.map((each) => [each.round, (sum += each.mean * run.history.width)]); });
    const [rounds, columns] = joined(totals);
    sums.show({ rounds, lines: runs.map((run, turn) => ({ name: run.name, values: columns[turn], colour: nodeColour(place(run.name)), width: 2 })) });
    const [tested, shares] = joined(runs.map((run) => run.metrics.held_out.map((each) => [each.round, each.held_out])));
    held.show({ rounds: tested, share: true, lines: runs.map((run, turn) => ({ name: run.name, values: shares[turn], colour: nodeColour(place(run.name)), width: 2, points: true })) });
  }
  function drawRewards(chart) {
    const [rounds, columns] = joined(runs.flatMap((run) => ["mean", "low", "high"].map((name) => run.history.mean.map((each) => [each.round, each[name]]))));
    const lines = [];
    const bands = [];
    runs.forEach((run, turn) => {
      const shade = nodeColour(usable.findIndex((each) => each.name === run.name));
      const [mean, low, high] = [0, 1, 2].map((part) => smooth(rounds, columns[3 * turn + part], SPAN));
      lines.push({ name: run.name, values: mean, colour: shade, width: 2.5 }, { name: `${run.name} low`, values: low, colour: shade, width: 0, quiet: true }, { name: `${run.name} high`, values: high, colour: shade, width: 0, quiet: true });
      bands.push({ low: lines.length - 2, high: lines.length - 1, colour: shade, strength: 0.13 });
    });
    chart.show({ rounds, lines, bands, empty: "Choose experiments above." });
  }
  await load();
  return { element: h("div", null, boxes, h("div", { class: "charts two" }, rewards.element, sums.element, held.element), figures), shown: draw, refresh: async () => { await load(); draw(); } };
}

const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function compared(runs) {
  const rows = runs.map(({ name, round, history, metrics }) => {
    const means = history.mean.map((each) => each.mean);
    const held = metrics.held_out;
    const tokens = metrics.figures.tokens.reduce((sum, value) => sum + (value || 0) * history.width, 0);
    return [name, `${round.own_wanted ?? NOTHING}/${round.external_wanted ?? NOTHING}`, round.status, whole(round.workers), whole(round.rounds_done), number(average(means.slice(0, 3))),
      number(average(means.slice(-10))), number(history.mean.reduce((sum, each) => sum + each.mean * history.width, 0), 1),
      held.length ? percent(held[0].held_out) : NOTHING, held.length ? percent(held.at(-1).held_out) : NOTHING, held.length ? percent(held.at(-1).in_form) : NOTHING, whole(tokens)];
  });
  return section("Figures", table(["experiment", "I/J", "status", "workers", "rounds", "first reward", "last reward", "sum a node", "held-out before", "held-out now", "in the form", "tokens a node"], rows, { numbers: 9, label: "Compared figures" }),
    h("p", { class: "faint" }, "First and last reward: means of the first 3 and the last 10 rounds. Compare at equal tokens as well as at equal rounds."));
}
