/* What pages of Suture do: draw figures when they come into view, obey the legend of methods, the choices beside a figure
   and the theme. Figures are data (see suture/report/figures/figure.py); texts of others reach the page as text only.

   Suture.start(settings)        wire a page: `settings` holds the two themes of Vega and the colours that differ
   Suture.place(element, figure) draw a figure, or draw it anew with other data, in an element of its own
   Suture.rows(packed)           a packed table as rows */
"use strict";

const Suture = (() => {
  const drawn = new Map(); // element -> {figure, view, chosen}
  let settings = { light: {}, dark: {}, swaps: {} };
  const hidden = new Set(); // methods that are not shown

  let printing = false;
  const dark = () => {
    if (printing) return false;
    const asked = document.documentElement.dataset.theme;
    return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };

  function rows(packed) {
    const names = Object.keys(packed);
    const columns = names.map((name) => {
      const one = packed[name];
      return Array.isArray(one) ? one : one.at.map((place) => one.of[place]);
    });
    const count = columns.length ? columns[0].length : 0;
    const found = new Array(count);
    for (let row = 0; row < count; row++) {
      const made = {};
      for (let place = 0; place < names.length; place++) made[names[place]] = columns[place][row];
      found[row] = made;
    }
    return found;
  }

  function wanted(figure, chosen) {
    const data = {};
    for (const [name, table] of Object.entries(figure.unpacked)) {
      const has = table.length ? table[0] : {};
      const tests = Object.entries(chosen).filter(([field]) => field in has);
      data[name] = table.filter(
        (row) => !("method" in has && hidden.has(row.method)) && tests.every(([field, value]) => row[field] === value),
      );
    }
    return data;
  }

  function recoloured(part) {
    if (Array.isArray(part)) return part.map(recoloured);
    if (part && typeof part === "object")
      return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, recoloured(value)]));
    return typeof part === "string" && part in settings.swaps ? settings.swaps[part] : part;
  }

  // The legend of methods stands in the page, once for all figures.
  function withoutLegend(part) {
    if (Array.isArray(part)) return part.map(withoutLegend);
    if (!part || typeof part !== "object") return part;
    const made = Object.fromEntries(Object.entries(part).map(([key, value]) => [key, withoutLegend(value)]));
    if (made.field === "method" && "legend" in made) made.legend = null;
    return made;
  }

  async function draw(element) {
    const state = drawn.get(element);
    const { figure } = state;
    const config = structuredClone(dark() ? settings.dark : settings.light);
    config.background = null;
    const stage = element.querySelector(".stage");
    config.legend.columns = Math.max(1, Math.floor(stage.clientWidth / 150));
    if (stage.clientWidth < 520) {
      config.legend.layout = { bottom: { direction: "vertical", anchor: "start", margin: 8 } };
      config.axis.labelLimit = 100;
      config.axisQuantitative.tickCount = 5;
    }
    let spec = withoutLegend(figure.spec);
    const measured = figure.controls.find((one) => one.titles);
    if (measured) spec.encoding.y.title = state.chosen[measured.field] ?? measured.values[measured.start];
    if (dark()) spec = recoloured(spec);
    spec.datasets = wanted(figure, state.chosen);
    spec.autosize = { type: "fit-x", contains: "padding" };
    spec.padding = { left: 2, right: 14, top: 6, bottom: 4 }; // the last label of an axis needs room beside it
    const result = await vegaEmbed(stage, spec, {
      actions: false,
      ast: true,
      config,
      defaultStyle: false,
      renderer: figure.dense ? "canvas" : "svg",
      tooltip: { theme: "custom", disableDefaultStyle: true },
    });
    if (state.result) state.result.finalize();
    state.result = result;
    // The figure's words stand in the page; the drawing itself has nothing more to say.
    for (const svg of stage.querySelectorAll("svg, canvas")) svg.setAttribute("aria-hidden", "true");
    element.dataset.drawn = "yes";
  }

  async function refresh(element) {
    const state = drawn.get(element);
    if (!state || !state.result) return;
    const { view } = state.result;
    for (const [name, table] of Object.entries(wanted(state.figure, state.chosen)))
      view.data(name, table);
    await view.runAsync();
  }

  function controls(element) {
    const state = drawn.get(element);
    for (const input of element.querySelectorAll("[data-field]")) {
      const control = state.figure.controls.find((one) => one.field === input.dataset.field);
      const told = element.querySelector(`output[for="${input.id}"]`);
      const read = () => {
        state.chosen[control.field] = control.values[Number(input.value)];
        if (told) told.textContent = String(state.chosen[control.field]);
      };
      read();
      input.addEventListener("input", () => {
        read();
        if (control.titles) draw(element);
        else refresh(element);
      });
    }
  }

  async function place(element, figure) {
    const before = drawn.get(element);
    figure.unpacked = Object.fromEntries(Object.entries(figure.tables).map(([name, table]) => [name, rows(table)]));
    drawn.set(element, { figure, chosen: before ? before.chosen : {}, result: before ? before.result : null });
    if (!before) controls(element);
    if (before && before.result && JSON.stringify(before.figure.spec) === JSON.stringify(figure.spec)) await refresh(element);
    else await draw(element);
  }

  async function placeFromPage(element) {
    try {
      await place(element, JSON.parse(element.querySelector("script[type='application/json']").textContent));
    } catch (error) {
      element.querySelector(".stage").textContent = "This figure could not be drawn.";
      throw error;
    }
  }

  function everyFigure(action) {
    for (const [element, state] of drawn) if (state.result) action(element);
  }

  function legend() {
    for (const box of document.querySelectorAll("input[data-method]"))
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(box.dataset.method);
        else hidden.add(box.dataset.method);
        for (const row of document.querySelectorAll("tr[data-method]")) row.hidden = hidden.has(row.dataset.method);
        everyFigure(refresh);
      });
    const all = document.querySelector("[data-all-methods]");
    if (all)
      all.addEventListener("click", () => {
        for (const box of document.querySelectorAll("input[data-method]:not(:checked)")) box.click();
      });
  }

  function theme() {
    const choice = document.querySelector("[data-theme-choice]");
    if (choice)
      choice.addEventListener("change", () => {
        if (choice.value === "auto") delete document.documentElement.dataset.theme;
        else document.documentElement.dataset.theme = choice.value;
        everyFigure(draw);
      });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => everyFigure(draw));
  }

  function start(given) {
    settings = given;
    legend();
    theme();
    const near = new IntersectionObserver(
      (seen) => {
        for (const { isIntersecting, target } of seen)
          if (isIntersecting) {
            near.unobserve(target);
            placeFromPage(target);
          }
      },
      { rootMargin: "300px" },
    );
    for (const element of document.querySelectorAll("figure[data-figure]")) near.observe(element);
    // Paper shows what nobody has scrolled to as well.
    addEventListener("afterprint", () => {
      printing = false;
      everyFigure(draw);
    });
    addEventListener("beforeprint", () => {
      printing = true;
      everyFigure(draw);
      for (const element of document.querySelectorAll("figure[data-figure]:not([data-drawn])")) placeFromPage(element);
    });
  }

  return { start, place, rows, refresh, draw };
})();

window.Suture = Suture;
const given = document.getElementById("settings");
if (given) Suture.start(JSON.parse(given.textContent));
