/* Curves of one run or several, which move while a run goes on: data of a drawn figure are changed, nothing is drawn anew. */

import { count, drawing, el, svg } from "./parts.js";

const SETS = { validation: [5, "Validation"], test: [6, "Test"], train: [4, "Training"], loss: [3, "Loss"] };
const MOST = 400;

export class Curves {
  constructor(figure, share) {
    this.figure = figure;
    this.share = share;
    this.runs = new Map(); // name -> {id, method, seed, points}
    this.hidden = new Set();
    this.set = "validation";
    this.labels = new Map(figure.series.map((one) => [`${one.id} ${one.method}`, one.label]));
    this.busy = false;
    this.again = false;
    this.element = this.made();
  }

  made() {
    const choice = el(
      "select",
      { onchange: (event) => this.choose(event.target.value) },
      Object.entries(SETS).map(([key, [, title]]) => el("option", { value: key }, title)),
    );
    this.legend = el("fieldset", { class: "legend" }, el("legend", {}, "Methods"), this.figure.series.map((one) => this.box(one)));
    this.stage = el("div", { class: "stage", role: "img", "aria-label": "Learning curves" });
    this.caption = el("figcaption", {});
    return el(
      "figure",
      { class: "wide curves" },
      el("div", { class: "choices" }, el("label", {}, "Curves of ", choice), this.legend),
      this.stage,
      this.caption,
    );
  }

  box(one) {
    const line = (mode) =>
      svg("line", { x1: 0, y1: 5, x2: 26, y2: 5, "stroke-width": 3, "stroke-dasharray": one.dash.join(" "), class: mode });
    const light = line("light");
    const dark = line("dark");
    light.setAttribute("stroke", one.colour);
    drawing().then(async () => {
      const { hello } = await import("./parts.js");
      dark.setAttribute("stroke", (await hello()).settings.swaps[one.colour] ?? one.colour);
    });
    return el(
      "label",
      {},
      el("input", {
        type: "checkbox",
        checked: true,
        onchange: (event) => {
          if (event.target.checked) this.hidden.delete(one.label);
          else this.hidden.add(one.label);
          this.draw();
        },
      }),
      svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, light, dark),
      el("span", {}, one.label),
    );
  }

  choose(set) {
    this.set = set;
    this.draw();
  }

  hear(kind, event, id) {
    const told = kind === "first" ? event.runs : event.added;
    if (kind === "first") this.runs.clear();
    for (const [name, run] of Object.entries(told ?? {})) {
      const known = this.runs.get(name);
      if (known && !run.anew && kind === "more") known.points.push(...run.points);
      else this.runs.set(name, { id: run.id ?? id, method: run.method, seed: run.seed, points: [...run.points] });
    }
    return this.draw();
  }

  tables() {
    const place = SETS[this.set][0];
    const scale = this.share && this.set !== "loss" ? 100 : 1;
    const runs = [];
    const by = new Map(); // label -> round -> values
    for (const run of this.runs.values()) {
      const label = this.labels.get(`${run.id} ${run.method}`) ?? run.method;
      if (this.hidden.has(label)) continue;
      let points = run.points.filter((point) => point[place] !== null);
      // Losses of several phases are not on one scale: those of the tested phase are drawn.
      const tested = run.points.find((point) => point[5] !== null);
      if (this.set === "loss" && tested) points = points.filter((point) => point[2] === tested[2]);
      const step = Math.max(1, Math.ceil(points.length / MOST));
      points = points.filter((_, number) => number % step === 0 || number === points.length - 1);
      const rounds = by.get(label) ?? new Map();
      by.set(label, rounds);
      for (const point of points) {
        const value = point[place] * scale;
        runs.push([label, `${run.id} ${run.seed}`, point[1], value]);
        rounds.set(point[1], [...(rounds.get(point[1]) ?? []), value]);
      }
    }
    const means = [];
    const ends = [];
    for (const [label, rounds] of by) {
      const found = [...rounds].sort((a, b) => a[0] - b[0]);
      const rows = found.map(([round, values]) => [label, round, values.reduce((a, b) => a + b) / values.length, values.length]);
      means.push(...rows);
      if (rows.length) ends.push(rows[rows.length - 1]);
    }
    const columns = (names, rows) => Object.fromEntries(names.map((name, number) => [name, rows.map((row) => row[number])]));
    return {
      runs: columns(["method", "seed", "round", "value"], runs),
      means: columns(["method", "round", "value", "seeds"], means),
      ends: columns(["method", "round", "value", "seeds"], ends),
    };
  }

  async draw() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    try {
      const suture = await drawing();
      const tables = this.tables();
      const points = tables.means.round.length;
      this.element.dataset.points = points;
      this.caption.textContent = points
        ? `${SETS[this.set][1]}${this.set === "loss" ? "" : ` score${this.share ? " in %" : ""}`} by round; thick lines are means over seeds, thin ones single runs.`
        : "Nothing of this has been measured yet.";
      this.stage.setAttribute("aria-label", `Learning curves of ${count(this.runs.size, "run")}, ${points} points. ${this.said(tables)}`);
      // Without a single point there are no axes to draw.
      this.stage.classList.toggle("empty", !points);
      if (this.element.isConnected && points) await suture.place(this.element, { ...this.figure, tables });
    } finally {
      this.busy = false;
    }
    if (this.again) {
      this.again = false;
      await this.draw();
    }
  }

  said(tables) {
    const { method, round, value } = tables.ends;
    return method.map((name, number) => `${name}: ${value[number].toPrecision(4)} in round ${round[number]}`).join("; ");
  }
}
