// Draw curves with uPlot: the colours of the page, a legend of buttons, and a line that reads out the round under the pointer.

import { fill, h, number, NOTHING } from "./dom.js";

const HEIGHT = 260;
const MOST_READ = 10; // lines that are read out
const drawn = new Set();

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
export const nodeColour = (place) => colour(`node-${place % 8}`);

function faded(hex, share) {
  const value = parseInt(hex.slice(1), 16);
  return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${share})`;
}

// The mean of each point and those before it, over so many rounds; gaps stay gaps.
export function smooth(rounds, values, span) {
  if (span <= 1) return values;
  let first = 0;
  let sum = 0;
  let count = 0;
  return values.map((value, place) => {
    if (value !== null) { sum += value; count += 1; }
    while (rounds[place] - rounds[first] >= span) {
      if (values[first] !== null) { sum -= values[first]; count -= 1; }
      first += 1;
    }
    return value === null || !count ? null : sum / count;
  });
}

// The mean reward of the first 3 and of the last 10 rounds, as in the report; of a long run, of the stretches that hold them.
export function firstAndLast({ mean, width }) {
  const average = (points) => (points.length ? points.reduce((sum, each) => sum + each.mean, 0) / points.length : null);
  return [average(mean.slice(0, Math.ceil(3 / width))), average(mean.slice(-Math.ceil(10 / width)))];
}

// Curves of points [round, value] on one axis of rounds.
export function joined(curves) {
  const rounds = [...new Set(curves.flatMap((points) => points.map((point) => point[0])))].sort((one, other) => one - other);
  const places = new Map(rounds.map((round, place) => [round, place]));
  const columns = curves.map((points) => {
    const column = new Array(rounds.length).fill(null);
    for (const [round, value] of points) column[places.get(round)] = value;
    return column;
  });
  return [rounds, columns];
}

// A chart that can be given new data. `make()` returns { rounds, lines, bands, share, low, empty }; a line is
// { name, values, colour, width, dash, points, quiet }, and a band { low, high, colour }, by places of lines.
export class Chart {
  constructor(title, caption, options = {}) {
    this.title = title;
    this.options = options;
    this.hidden = new Set();
    this.box = h("div", { class: "plot", role: "img", tabindex: "0", "aria-label": title, onkeydown: (event) => this.step(event) });
    this.readout = h("p", { class: "readout", "aria-hidden": "true" }, " ");
    this.legend = h("div", { class: "legend", role: "group", "aria-label": `Lines of ${title}` });
    this.element = h("figure", { class: `card chart ${options.wide ? "wide" : ""}` }, h("h2", null, title), this.readout, this.box, this.legend,
      caption && h("figcaption", null, caption));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
    drawn.add(this);
  }

  show(data) {
    if (!drawn.has(this)) return; // the reader has left the view meanwhile
    this.data = data;
    const lines = data.lines.filter((line) => line.values.some((value) => value !== null && value !== undefined));
    if (!data.rounds.length || !lines.length) {
      this.drop();
      fill(this.box, h("p", { class: "nothing" }, data.empty || "Not measured yet."));
      fill(this.legend);
      return;
    }
    const shape = JSON.stringify([data.lines.map((line) => [line.name, line.colour, line.dash]), (data.bands || []).length]);
    if (this.plot && this.shape === shape) {
      this.plot.setData([data.rounds, ...data.lines.map((line) => line.values)], !this.enlarged());
      if (this.enlarged()) this.plot.redraw();
    } else {
      this.shape = shape;
      this.build();
    }
    if (!this.enlarged()) this.ends = [data.rounds[0], data.rounds.at(-1)];
    this.describe();
  }

  build() {
    this.drop();
    fill(this.box);
    const { data } = this;
    this.ends = [data.rounds[0], data.rounds.at(-1)];
    const axis = { stroke: colour("faint"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
    const share = data.share;
    const series = data.lines.map((line, place) => ({
      label: line.name,
      show: !this.hidden.has(line.name),
      stroke: line.colour,
      width: line.width === undefined ? 1.5 : line.width,
      dash: line.dash,
      spanGaps: true,
      points: { show: () => this.dotted(place), size: 6, fill: line.colour },
      place,
    }));
    this.plot = new uPlot({
      width: Math.max(200, this.box.clientWidth),
      height: this.options.height || HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false } },
      scales: {
        x: { time: false },
        y: { range: (plot, low, high) => range(low, high, share, this.data.low) },
      },
      axes: [
        { ...axis, size: 34, values: (plot, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
        { ...axis, size: 48, values: (plot, ticks) => ticks.map((tick) => (share ? `${Math.round(100 * tick)}%` : short(tick))) },
      ],
      series: [{ label: "round" }, ...series],
      bands: (data.bands || []).map((band) => ({ series: [band.high + 1, band.low + 1], fill: faded(band.colour, band.strength || 0.16) })),
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx ?? null)] },
    }, [data.rounds, ...data.lines.map((line) => line.values)], this.box);
    fill(this.legend, data.lines.filter((line) => !line.quiet).map((line) => this.button(line)));
  }

  // A single value makes no line, so it is shown as a dot.
  dotted(place) {
    const { points, quiet, values } = this.data.lines[place];
    return points ?? (!quiet && values.filter((value) => value !== null).length < 2);
  }

  // Whether the reader has dragged over a part, which new rounds must not undo.
  enlarged() {
    const { min, max } = this.plot.scales.x;
    return min > this.ends[0] || max < this.ends[1];
  }

  button(line) {
    const mark = h("span", { class: "mark" });
    mark.style.background = line.colour;
    const made = h("button", { type: "button", class: "quiet", "aria-pressed": String(!this.hidden.has(line.name)) }, mark, line.name);
    made.addEventListener("click", () => {
      if (this.hidden.has(line.name)) this.hidden.delete(line.name);
      else this.hidden.add(line.name);
      const place = this.data.lines.findIndex((each) => each.name === line.name);
      this.plot.setSeries(place + 1, { show: !this.hidden.has(line.name) });
      made.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
      this.describe();
    });
    return made;
  }

  // The arrow keys move the pointer from round to round; Escape leaves it at the newest one and shows all rounds.
  step(event) {
    const last = this.data.rounds.length - 1;
    const ways = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last };
    if (!this.plot || !(event.key in ways || event.key === "Escape")) return;
    event.preventDefault();
    if (event.key === "Escape") {
      this.plot.setScale("x", { min: this.ends[0], max: this.ends[1] });
      this.plot.setCursor({ left: -10, top: -10 });
      return;
    }
    const at = Math.min(last, Math.max(0, (this.plot.cursor.idx ?? last) + ways[event.key]));
    this.plot.setCursor({ left: this.plot.valToPos(this.data.rounds[at], "x"), top: 0 });
  }

  // Read out the round under the pointer, or the newest one.
  read(place) {
    const { data } = this;
    const at = place ?? data.rounds.length - 1;
    const lines = data.lines.filter((line) => !line.quiet && !this.hidden.has(line.name)).slice(0, MOST_READ);
    const values = lines.map((line) => (line.own || line.values)[at] ?? (place === null ? newest(line) : null));
    const together = place !== null || lines.every((line) => (line.own || line.values)[at] !== null);
    fill(this.readout, h("span", null, together ? `round ${Math.round(data.rounds[at])}` : "newest"),
      lines.map((line, turn) => h("span", null, `${line.name} `, h("b", null, this.written(values[turn])))));
  }

  written(value) {
    if (value === null || value === undefined) return NOTHING;
    return this.data.share ? `${number(100 * value, 1)} %` : number(value, this.options.digits === undefined ? 3 : this.options.digits);
  }

  describe() {
    this.read(null);
    const { data } = this;
    const said = data.lines.filter((line) => !line.quiet).slice(0, MOST_READ).map((line) => `${line.name} ${this.written(newest(line))}`);
    this.box.setAttribute("aria-label", `${this.title}, rounds ${Math.round(data.rounds[0])} to ${Math.round(data.rounds.at(-1))}. Newest: ${said.join(", ")}.`);
  }

  resize() {
    if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: this.options.height || HEIGHT });
  }

  drop() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }

  close() {
    this.drop();
    this.observer.disconnect();
    drawn.delete(this);
  }
}

const newest = (line) => (line.own || line.values).findLast((value) => value !== null);

function range(low, high, share, least) {
  if (low === null || high === null) return [0, 1];
  if (share) return [0, 1];
  const bottom = least === undefined ? Math.min(0, low) : Math.min(least, low);
  const top = high > bottom ? high : bottom + 1;
  return [bottom, top + 0.08 * (top - bottom || 1)];
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  if (size < 0.001) return value.toExponential(0);
  return String(+value.toFixed(3));
}

export function closeAll() {
  for (const chart of [...drawn]) chart.close();
}
