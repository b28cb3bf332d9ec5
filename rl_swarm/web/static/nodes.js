// Who is doing what, since when; what each node gave and got; who learnt from whom.

import { ask } from "./api.js";
import { Chart, joined, nodeColour } from "./charts.js";
import { ago, h, NOTHING, number, renew, roughly, section, state, table, who, whole } from "./dom.js";

const MOST_CELLS = 16;
const PAGE = 25;
const SORTS = { reward: "reward", won: "rounds won", total: "sum of rewards" };

export async function open({ experiment }) {
  const parts = { doing: h("div"), uses: h("div") };
  const leaders = new Board(experiment);
  const cumulative = new Chart("Cumulative reward", "The sum of each worker's own rewards: the paper's figure.", { wide: true, digits: 1 });
  const element = h("div", null, parts.doing, leaders.element, h("div", { class: "charts" }, cumulative.element), parts.uses);
  let curves = null;

  async function load() {
    const [peers, sums] = await Promise.all([ask("peers", { experiment }), ask("leaderboard-cumulative", { experiment, limit: 8 }), leaders.load()]);
    curves = sums;
    renew(parts.doing, doing(peers));
    renew(parts.uses, uses(peers));
  }
  function draw() {
    const [rounds, columns] = joined(curves.leaders.map((each) => each.points));
    const places = [...curves.leaders].sort((one, other) => (one.id < other.id ? -1 : 1)).map((each) => each.id);
    cumulative.show({ rounds, empty: "No round is finished yet.",
      lines: curves.leaders.map((each, place) => ({ name: each.id, values: columns[place], colour: nodeColour(places.indexOf(each.id)), width: 2 })) });
  }
  await load();
  return { element, shown: draw, refresh: async () => { await load(); draw(); } };
}

function doing({ peers, total, remarks }) {
  if (!peers.length) return state("No node has joined yet", "Start one with 'rl-swarm work', or 'rl-swarm join STORE/EXPERIMENT' on another machine.");
  const heads = ["node", "doing", "for", "round", "reward", "own", "external", "age", "s/round", "tokens/s", "gave", "got", "tokens", "rejected"];
  const rows = peers.map((peer) => [
    who(peer),
    peer.silent_seconds !== null ? h("span", { class: "doing wrong" }, `silent for ${roughly(peer.silent_seconds)}, was ${peer.doing}`)
      : h("span", { class: `doing ${peer.doing.startsWith("failed") ? "wrong" : peer.ended ? "faint" : "good"}` }, peer.doing),
    ago(peer.since), peer.round ?? NOTHING, number(peer.reward),
    peer.own_wanted ? `${peer.own_used}/${peer.own_wanted}` : NOTHING, peer.external_wanted ? `${peer.external_used}/${peer.external_wanted}` : NOTHING,
    number(peer.external_age, 1), number(peer.seconds, 1), whole(peer.tokens_per_s), ...(peer.role === "worker" ? [peer.gave, peer.got, peer.tokens, Object.values(peer.rejected).reduce((sum, count) => sum + count, 0)].map(whole)
      : Array(4).fill(NOTHING))]);
  const muted = peers.flatMap((peer) => peer.muted.map((mute) => `${peer.id} has muted ${mute.peer} until round ${mute.until}: ${mute.reason}`));
  return section(`Who is doing what (${total})`,
    table(heads, rows, { numbers: 12, label: "Nodes" }),
    h("p", { class: "faint" }, "Reward: mean of the last 5 rounds. Own, external: rollouts used, of I and J. Gave: how often peers trained on the node's rollouts. Got: how often it trained on theirs."),
    remarks.length || muted.length ? h("ul", { class: "lines" }, [...remarks, ...muted].map((line) => h("li", null, line))) : null);
}

// The leaderboard. Its controls stay the same elements, so that new rounds do not take them away from a reader.
class Board {
  constructor(experiment) {
    this.experiment = experiment;
    this.offset = 0;
    this.order = h("select", { id: "sort", onchange: () => this.turn(-this.offset) }, Object.entries(SORTS).map(([value, name]) => h("option", { value }, name)));
    this.before = h("button", { type: "button", onclick: () => this.turn(-PAGE) }, "Before");
    this.after = h("button", { type: "button", onclick: () => this.turn(PAGE) }, "After");
    this.where = h("span");
    this.pages = h("p", { class: "tools" }, this.before, this.where, this.after);
    this.rows = h("div");
    this.element = section("Leaderboard", h("p", { class: "tools" }, h("label", null, "By ", this.order)), this.rows, this.pages,
      h("p", { class: "faint" }, "A round is won by the highest own reward; nodes with the same reward share it."));
  }

  turn(by) {
    this.offset += by;
    this.load().catch(() => { this.offset -= by; });
  }

  async load() {
    const { leaders, total } = await ask("leaderboard", { experiment: this.experiment, sort: this.order.value, offset: this.offset, limit: PAGE });
    this.element.hidden = !total;
    this.pages.hidden = total <= PAGE;
    this.before.disabled = !this.offset;
    this.after.disabled = this.offset + PAGE >= total;
    renew(this.where, `${this.offset + 1} to ${this.offset + leaders.length} of ${total}`);
    renew(this.rows, table(["node", "rank", "reward", "rounds won", "sum of rewards", "rounds"],
      leaders.map((each) => [who(each), each.rank, number(each.reward), number(each.rounds_won, 1), number(each.reward_total, 1), whole(each.rounds)]), { numbers: 5, label: "Leaderboard" }));
  }
}

function uses({ peers, uses: found }) {
  const workers = peers.filter((peer) => peer.role === "worker");
  if (!workers.length) return null;
  if (!found.length) return section("Who learnt from whom", h("p", { class: "nothing" }, "No node has trained on a rollout of a peer yet. With J = 0 none ever does."));
  const counts = new Map(found.map((use) => [`${use.learner} ${use.author}`, use.count]));
  if (workers.length > MOST_CELLS) {
    const top = [...found].sort((one, other) => other.count - one.count).slice(0, 50);
    return section("Who learnt from whom", table(["learner", "author", "times"], top.map((use) => [use.learner, use.author, whole(use.count)]), { numbers: 1, label: "Who learnt from whom" }));
  }
  const most = Math.max(...found.map((use) => use.count));
  const rows = workers.map((learner) => [learner.id, ...workers.map((author) => {
    if (learner === author) return h("span", { class: "faint" }, `own ${whole(learner.own_trained)}`);
    const count = counts.get(`${learner.id} ${author.id}`) || 0;
    const cell = h("span", { class: "heat" }, whole(count));
    cell.style.setProperty("--heat", String(Math.round(45 * count / most)));
    return cell;
  }), whole(learner.got)]);
  rows.push(["gave", ...workers.map((author) => whole(author.gave)), ""]);
  return section("Who learnt from whom", table(["learner", ...workers.map((each) => each.id), "got"], rows, { numbers: workers.length + 1, label: "Who learnt from whom" }),
    h("p", { class: "faint" }, "How often the node of the row trained on a rollout of the column's author."));
}
