// Several experiments on one axis, such as the splits of the paper's table.

import { ask } from "./api.js";
import { Chart, firstAndLast, joined, nodeColour, smooth } from "./charts.js";
import { fill, h, NOTHING, number, percent, renew, section, state, table, whole } from "./dom.js";

const MOST = 8;
const USUAL = 4; // that are chosen at first
const SPAN = 5;

export async function open({ params, known, experiment, link, isCurrent }) {
  const rewards = new Chart("Reward of own completions, mean of the nodes", "Mean of 5 rounds, or more in a long run. Bands go from the lowest node to the highest.", { wide: true, height: 340 });
  const sums = new Chart("Cumulative reward of a node", "The sum so far, mean of the nodes: the paper's figure.", { digits: 1 });
  const held = new Chart("Held-out accuracy, as the verifier reads", "Mean of the nodes.");
  const charts = h("div", { class: "charts two" }, rewards.element, sums.element, held.element);
  const figures = h("div");
  const full = h("span", { class: "wrong", role: "status" });
  const boxes = h("fieldset", { class: "card choose" }, h("legend", null, "Experiments"));
  const usable = [];
  const places = new Map(); // of the chosen ones among the colours
  const chosen = new Set((params.with || "").split(",").filter(Boolean));
  const named = chosen.size > 0;
  let runs = [];
  let loads = 0;

  // Offer the experiments that have a round to show. Unless the address names some, the first few are chosen.
  function meet(found) {
    for (const each of found) {
      if (!each.rounds_done || usable.some((other) => other.name === each.name)) continue;
      usable.push(each);
      if (!named && chosen.size < USUAL) chosen.add(each.name);
      boxes.append(box(each));
    }
    boxes.append(full);
    boxes.hidden = charts.hidden = !usable.length;
  }
  function box(each) {
    const made = h("input", { type: "checkbox", value: each.name, checked: chosen.has(each.name) });
    made.addEventListener("change", () => {
      if (made.checked && chosen.size >= MOST) made.checked = false;
      fill(full, chosen.size >= MOST && !made.checked && !chosen.has(each.name) && `At most ${MOST} at once.`);
      if (made.checked) chosen.add(each.name); else chosen.delete(each.name);
      history.replaceState(null, "", link("compare", { experiment, with: [...chosen].join(",") }));
      load().then(draw, () => fill(full, "The server does not answer."));
    });
    return h("label", null, made, ` ${each.name}`, h("span", { class: "faint" }, each.own_wanted === null ? "" : ` ${each.own_wanted}/${each.external_wanted}`));
  }
  function shade(name) {
    for (const other of places.keys()) if (!chosen.has(other)) places.delete(other);
    const taken = new Set(places.values());
    if (!places.has(name)) places.set(name, [...Array(MOST).keys()].find((place) => !taken.has(place)));
    return nodeColour(places.get(name));
  }
  async function load() {
    const turn = ++loads;
    const names = usable.map((each) => each.name).filter((name) => chosen.has(name));
    const found = await Promise.all(names.map(async (name) => {
      const [round, history, metrics] = await Promise.all([ask("round_and_stage", { experiment: name }), ask("rewards-history", { experiment: name }),
        ask("metrics", { experiment: name, figure: ["reward", "tokens"] })]);
      return { name, round, history, metrics };
    }));
    if (!isCurrent() || turn !== loads) return;
    runs = found;
    renew(figures, runs.length ? compared(runs) : usable.length ? state("Choose experiments", "Tick at least one above.")
      : state("Nothing to compare yet", "Experiments appear here with their first round."));
  }
  function draw() {
    if (!isCurrent()) return;
    const shades = runs.map((run) => shade(run.name));
    drawRewards(rewards, runs, shades);
    const curve = (values, more) => runs.map((run, turn) => ({ name: run.name, values: values[turn], colour: shades[turn], width: 2, ...more }));
    const [rounds, totals] = joined(runs.map(sumsOf));
    sums.show({ rounds, lines: curve(totals) });
    const [tested, shares] = joined(runs.map((run) => run.metrics.held_out.map((each) => [each.round, each.held_out])));
    held.show({ rounds: tested, share: true, lines: curve(shares, { points: true }) });
  }
  async function refresh() {
    meet((await ask("experiments")).experiments);
    await load();
    draw();
  }
  meet(known);
  await load();
  return { element: h("div", null, boxes, charts, figures), shown: draw, refresh, several: true };
}

function drawRewards(chart, runs, shades) {
  const [rounds, columns] = joined(runs.flatMap((run) => ["mean", "low", "high"].map((name) => run.history.mean.map((each) => [each.round, each[name]]))));
  const lines = [];
  const bands = [];
  runs.forEach(({ name }, turn) => {
    const [mean, low, high] = [0, 1, 2].map((part) => smooth(rounds, columns[3 * turn + part], SPAN));
    lines.push({ name, values: mean, colour: shades[turn], width: 2.5 }, { name: `${name} low`, values: low, colour: shades[turn], width: 0, quiet: true },
      { name: `${name} high`, values: high, colour: shades[turn], width: 0, quiet: true });
    bands.push({ low: lines.length - 2, high: lines.length - 1, colour: shades[turn], strength: 0.13 });
  });
  chart.show({ rounds, lines, bands, empty: "Choose experiments above." });
}

// How many rounds a point stands for: the newest stretch may still be growing.
function weight({ round, history: { width } }, middle) {
  return Math.min(width, round.rounds_done - (middle - (width - 1) / 2));
}

function sumsOf(run) {
  let sum = 0;
  return run.history.mean.map((each) => [each.round, (sum += each.mean * weight(run, each.round))]);
}

function compared(runs) {
  const rows = runs.map((run) => {
    const { name, round, history, metrics } = run;
    const [first, last] = firstAndLast(history);
    const held = metrics.held_out;
    const tokens = metrics.figures.tokens.reduce((sum, value, place) => sum + (value || 0) * weight(run, metrics.rounds[place]), 0);
    return [name, `${round.own_wanted ?? NOTHING}/${round.external_wanted ?? NOTHING}`, round.status, whole(round.workers), whole(round.rounds_done), number(first), number(last), number(sumsOf(run).at(-1)?.[1], 1),
      held.length ? percent(held[0].held_out) : NOTHING, held.length ? percent(held.at(-1).held_out) : NOTHING, held.length ? percent(held.at(-1).in_form) : NOTHING, whole(tokens)];
  });
  return section("Figures", table(["experiment", "I/J", "status", "workers", "rounds", "first reward", "last reward", "sum a node", "held-out before", "held-out now", "in the form", "tokens a node"], rows, { numbers: 9, label: "Compared figures" }),
    h("p", { class: "faint" }, "First and last reward: means of the first 3 and the last 10 rounds, or more in a long run. Compare at equal tokens as well as at equal rounds."));
}
