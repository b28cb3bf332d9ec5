// One run at a glance: is it learning, from what, and how fast.

import { ask } from "./api.js";
import { Chart, colour, firstAndLast, joined, nodeColour, smooth } from "./charts.js";
import { ago, counted, duration, h, NOTHING, number, percent, renew, section, state, table, tile, whole } from "./dom.js";

const SPANS = { 1: "each round", 5: "mean of 5 rounds", 20: "mean of 20 rounds", 100: "mean of 100 rounds" };
const MOST_NAMED = 8;
const kept = { span: 5 };

export async function open({ experiment, link }) {
  const parts = { top: h("div"), advice: h("div"), notes: h("div"), gossip: h("div"), rejected: h("div", { class: "rest" }), width: h("span", { class: "faint" }) };
  const charts = make();
  const control = h("select", { id: "span" }, Object.entries(SPANS).map(([value, name]) => h("option", { value, selected: Number(value) === kept.span }, name)));
  parts.curves = h("div", null,
    h("p", { class: "tools" }, h("label", null, "Curves show ", control), parts.width),
    h("div", { class: "charts" }, charts.rewards.element, charts.heldOut.element, charts.own.element, charts.external.element,
      charts.age.element, charts.uninformative.element, charts.speed.element, charts.seconds.element, charts.entropy.element,
      h("div", { class: "card chart" }, h("h2", null, "Rejected files and rollouts of peers"), parts.rejected)));
  const element = h("div", null, parts.top, parts.advice, parts.curves, parts.gossip, parts.notes);
  let data = null;
  const draw = () => { drawCharts(charts, data); };
  control.addEventListener("change", () => { kept.span = Number(control.value); draw(); });

  async function load() {
    const [round, rewards, metrics, gossip, peers] = await Promise.all([
      ask("round_and_stage", { experiment }), ask("rewards-history", { experiment }), ask("metrics", { experiment }),
      ask("gossip", { experiment, limit: 8 }), ask("peers", { experiment })]);
    data = { round, rewards, metrics, gossip, peers };
    renew(parts.width, rewards.width > 1 && `In a run of this length, a point is the mean of ${rewards.width} rounds.`);
    renew(parts.top, header(data));
    renew(parts.advice, advice(data));
    renew(parts.gossip, latest(data, experiment, link));
    renew(parts.notes, notes(data));
    renew(parts.rejected, rejected(data));
    parts.curves.hidden = !rewards.mean.length;
  }

  await load();
  return { element, title: experiment, shown: draw, refresh: async () => { await load(); draw(); } };
}

function header({ round, rewards, metrics, peers }) {
  const mean = rewards.mean;
  const [first, last] = firstAndLast(rewards);
  const grown = first && last ? `${number(last / first, 1)} times` : "";
  const held = metrics.held_out;
  const change = (name) => (held.length > 1 ? `${percent(held[0][name])} → ${percent(held.at(-1)[name])}` : held.length ? percent(held[0][name]) : NOTHING);
  const done = round.max_rounds ? Math.min(1, round.rounds_done / round.max_rounds) : 0;
  const bar = h("progress", { max: 1, value: done, "aria-label": "rounds done" });
  const work = peers.peers.filter((peer) => peer.role === "worker");
  const silent = work.filter((peer) => peer.silent_seconds !== null).length;
  const left = round.status === "running" && round.seconds_left !== null ? `${duration(round.seconds_left)} left` : round.status;
  return [
    h("p", { class: "facts" }, [round.model, round.own_wanted !== null ? `${round.own_wanted} own and ${round.external_wanted} external rollouts a round (I, J), ${round.group_size} completions each (G)` : null,
      counted(round.workers, "worker") + (silent ? `, ${silent} silent` : ""), round.pace !== null ? `${number(round.pace, 1)} s a round` : null,
      round.tokens_per_s ? `${whole(round.tokens_per_s)} tokens/s` : null, round.last_round_at ? `last round ${ago(round.last_round_at)} ago` : null].filter(Boolean).join(" · ")),
    round.trouble && h("p", { class: "note bad", role: "alert" }, `Nothing new can be read; the figures are from before. ${round.trouble}`),
    round.reading && h("p", { class: "note" }, "Still reading the journals of this run: the figures are growing."),
    h("div", { class: "tiles" },
      tile(`rounds, ${left}`, round.max_rounds ? `${whole(round.rounds_done)} of ${whole(round.max_rounds)}` : whole(round.rounds_done), "", bar),
      tile("reward of own completions", mean.length > 3 ? `${number(first)} → ${number(last)}` : number(last), grown ? `${grown}, first 3 rounds to last 10` : "mean of the workers"),
      tile("held-out, as the verifier reads", change("held_out"), held.length ? `${held.at(-1).questions} questions, ${percent(held.at(-1).low, 0)} to ${percent(held.at(-1).high, 0)}` : "measured every EVAL_INTERVAL rounds"),
      tile("held-out, in the form", change("in_form"), "made to begin with <answer>"),
      tile("held-out, in any form", change("style_blind"), "right, however it is written")),
  ];
}

function advice({ metrics, peers, rewards }) {
  if (!rewards.mean.length) {
    const workers = peers.peers.filter((peer) => peer.role === "worker");
    if (!workers.length) return state("No round is finished yet", "No worker has joined yet. Start one with 'rl-swarm work' or 'rl-swarm join'.");
    return state("No round is finished yet", "Figures appear here with the first one.",
      workers.slice(0, MOST_NAMED).map((peer) => h("p", null, `${peer.id}: ${peer.doing}${peer.since ? `, for ${ago(peer.since)}` : ""}`)));
  }
  const { share, line } = metrics.uninformative;
  return line && h("p", { class: "note bad" }, `${percent(share, 0)} of the newest own rollouts were uninformative. ${line}`);
}

function make() {
  return {
    rewards: new Chart("Reward of the nodes' own completions", "The band goes from the lowest node to the highest. Rewards of peers' rollouts never count.", { wide: true, height: 320 }),
    heldOut: new Chart("Held-out accuracy", "Questions that nobody trains on, mean of the nodes. The band is the range that chance leaves."),
    own: new Chart("Own rollouts used, of I", "Only informative rollouts carry a gradient.", { digits: 1 }),
    external: new Chart("External rollouts used, of J", "Rollouts of peers that were trained on.", { digits: 1 }),
    age: new Chart("Age of external rollouts", "Staleness: how many rounds ago they were written.", { digits: 2 }),
    uninformative: new Chart("Uninformative own rollouts", "Share whose completions all had the same reward."),
    speed: new Chart("Tokens per second", "Of a worker, while it generates.", { digits: 0 }),
    seconds: new Chart("Seconds of a round, by phase", "Stacked; mean of the workers.", { digits: 2 }),
    entropy: new Chart("Entropy", "Nats a token. A fall to zero means that the model no longer explores.", { digits: 2 }),
  };
}

function drawCharts(charts, { round, rewards, metrics }) {
  drawRewards(charts.rewards, rewards);
  const { rounds, figures, held_out: held } = metrics;
  const line = (name, figure, shade, more = {}) => ({ name, values: smooth(rounds, figures[figure], kept.span), colour: colour(shade), ...more });
  const first = colour("first");
  charts.heldOut.show({
    rounds: held.map((each) => each.round), share: true, empty: "Not measured yet: EVAL_INTERVAL says how often it is.",
    lines: [
      { name: "as the verifier reads", values: held.map((each) => each.held_out), colour: first, width: 2.5, points: true },
      { name: "in the form", values: held.map((each) => each.in_form), colour: colour("faint"), dash: [3, 4], width: 2 },
      { name: "in any form", values: held.map((each) => each.style_blind), colour: colour("second"), dash: [8, 4], width: 2, points: true },
      { name: "low", values: held.map((each) => each.low), colour: first, width: 0, quiet: true },
      { name: "high", values: held.map((each) => each.high), colour: first, width: 0, quiet: true }],
    bands: [{ low: 3, high: 4, colour: first }],
  });
  charts.own.show({ rounds, lines: [line("used", "own_used", "first", { width: 2 }), line("wanted, I", "own_wanted", "faint", { dash: [5, 4] })] });
  const shared = figures.external_wanted.some((value) => value);
  charts.external.show({ rounds: shared ? rounds : [], empty: round.external_wanted ? "Not measured yet." : "J = 0: no node asks for rollouts of its peers.", lines: [line("used", "external_used", "first", { width: 2 }), line("wanted, J", "external_wanted", "faint", { dash: [5, 4] })] });
  charts.age.show({ rounds, empty: "No external rollout was used yet.", lines: [line("mean age in rounds", "external_age", "second", { width: 2 })] });
  charts.uninformative.show({ rounds, share: true, lines: [line("uninformative", "uninformative", "wrong", { width: 2 })] });
  charts.speed.show({ rounds, lines: [line("tokens/s", "tokens_per_s", "first", { width: 2 })] });
  drawSeconds(charts.seconds, rounds, figures);
  charts.entropy.show({ rounds, lines: [line("entropy", "entropy", "first", { width: 2 })] });
}

function drawRewards(chart, history) {
  const mean = history.mean.map((each) => [each.round, each.mean]);
  const low = history.mean.map((each) => [each.round, each.low]);
  const high = history.mean.map((each) => [each.round, each.high]);
  const named = history.nodes.length <= MOST_NAMED ? history.nodes : [];
  const [rounds, columns] = joined([mean, low, high, ...named.map((node) => node.points)]);
  const values = columns.map((column) => smooth(rounds, column, kept.span));
  const first = colour("first");
  chart.show({
    rounds, empty: "No round is finished yet.",
    lines: [
      ...named.map((node, place) => ({ name: node.id, values: values[3 + place], colour: nodeColour(place), width: 1.2 })),
      { name: "lowest", values: values[1], colour: first, width: 0, quiet: true },
      { name: "highest", values: values[2], colour: first, width: 0, quiet: true },
      { name: "all nodes", values: values[0], colour: first, width: 3 }],
    bands: [{ low: named.length, high: named.length + 1, colour: first, strength: 0.12 }],
  });
}

function drawSeconds(chart, rounds, figures) {
  const phases = [["generate", "first"], ["train", "second"], ["score", "good"], ["store", "node-3"], ["other", "faint"]];
  let below = rounds.map(() => 0);
  const lines = [{ name: "nothing", values: below, colour: colour("grid"), width: 0, quiet: true }];
  const bands = [];
  for (const [name, shade] of phases) {
    const own = smooth(rounds, figures[`seconds_${name}`], kept.span);
    below = below.map((value, place) => value + (own[place] || 0));
    lines.push({ name, values: below, colour: colour(shade), width: 1.5, own });
    bands.push({ low: lines.length - 2, high: lines.length - 1, colour: colour(shade), strength: 0.3 });
  }
  const measured = figures.seconds_generate.some((value) => value !== null);
  chart.show({ rounds: measured ? rounds : [], lines, bands });
}

function rejected({ metrics, peers }) {
  const rows = Object.entries(metrics.rejected);
  const muted = peers.peers.flatMap((peer) => peer.muted.map((mute) => [`${peer.id} has muted ${mute.peer}`, `until round ${mute.until}`]));
  if (!rows.length && !muted.length) return h("p", { class: "nothing" }, "None so far.");
  return table(["reason", "count"], [...rows.map(([reason, count]) => [reason, whole(count)]), ...muted], { numbers: 1, label: "Rejected files and rollouts" });
}

function latest({ gossip }, experiment, link) {
  if (!gossip.completions.length) return null;
  return section("Latest completions", h("ul", { class: "gossip" }, gossip.completions.map((each) => h("li", null,
    h("p", { class: "faint" }, `${each.name}, ${each.node}, round ${each.round}, ${each.task} · `, verdict(each.verdict, each.reward)),
    h("p", { class: "asked" }, each.prompt),
    h("pre", { class: shade(each.verdict) }, each.text || "(nothing)"),
    h("a", { href: link("rollouts", { experiment, id: each.rollout }) }, "open the rollout", h("span", { class: "away" }, ` ${each.rollout}`))))));
}

export function shade(verdict) {
  return verdict === "right" ? "good" : verdict === "wrong" ? "wrong" : "partly";
}
export function verdict(word, reward) {
  return h("span", { class: shade(word) }, `${word}, reward ${number(reward, 2)}`);
}

function notes({ metrics, peers }) {
  const remarks = peers.remarks.map((line) => h("li", null, line));
  const lines = metrics.notes.slice(0, 12).map((note) => h("li", null, h("span", { class: "faint" }, `${ago(note.at)} ago, ${note.node}: `), note.line));
  return remarks.length || lines.length ? section("What nodes have said", h("ul", { class: "lines" }, remarks, lines)) : null;
}
