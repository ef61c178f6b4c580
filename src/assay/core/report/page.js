// Draws the charts when they come into view, and keeps the table of runs. Names come from users: they are only ever set as
// text, never as markup.
(() => {
  "use strict";

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };
  const read = (id) => JSON.parse(document.getElementById(id).textContent);

  // -- charts ---------------------------------------------------------------------------------------------------------

  const specs = read("charts");
  const config = {
    background: null, font: getComputedStyle(document.body).fontFamily, padding: { left: 2, right: 12, top: 4, bottom: 2 },
    view: { stroke: null },
    axis: {
      labelColor: "var(--muted)", titleColor: "var(--muted)", gridColor: "var(--grid)", domainColor: "var(--rule)", tickColor: "var(--rule)",
      labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 190, titlePadding: 8, labelSeparation: 10,
    },
    axisY: { domain: false, ticks: false, labelPadding: 8 },
    axisBand: { grid: true },
    legend: { labelColor: "var(--muted)", titleColor: "var(--muted)", labelFontSize: 12, symbolSize: 90, padding: 0, offset: 8 },
    text: { fontSize: 12, color: "var(--ink)" },
  };
  const narrow = window.matchMedia("(max-width: 40rem)");
  const fewerColumns = (node) => {
    if (node === null || typeof node !== "object") return;
    if (node.legend && node.legend.columns) node.legend.columns = Math.ceil(node.legend.columns / 2);
    Object.values(node).forEach(fewerColumns);
  };
  const draw = (place, original) => {
    place.dataset.drawn = "yes";
    const spec = structuredClone(original);
    let own = config;
    if (narrow.matches) {
      own = { ...config, axis: { ...config.axis, labelLimit: 110 } };
      fewerColumns({ layer: spec.layer });
    }
    return vegaEmbed(place, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, config: own, tooltip: { theme: "custom" },
    }).then((result) => result.view).catch((error) => {
      place.textContent = "This chart cannot be drawn: " + error.message;
      throw error;
    });
  };
  const drawOnce = (place) => {
    if (!place.dataset.drawn && place.dataset.chart !== undefined) draw(place, specs[Number(place.dataset.chart)]);
  };
  // Hidden panels have no width, so their charts wait until they are shown.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { watcher.unobserve(entry.target); drawOnce(entry.target); }
  }, { rootMargin: "600px" });
  document.querySelectorAll(".chart").forEach((place) => watcher.observe(place));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll(".chart").forEach((place) => { if (place.offsetParent) drawOnce(place); });
    document.querySelectorAll(".failure details").forEach((details) => { details.open = true; });
  });

  document.querySelectorAll("fieldset.metrics input").forEach((choice) => choice.addEventListener("change", () => {
    const chosen = document.getElementById(choice.value);
    document.querySelectorAll(`.panel[data-section="${chosen.dataset.section}"]`).forEach((panel) => { panel.hidden = panel !== chosen; });
  }));
  document.querySelectorAll("select.curve-choice").forEach((choice) => choice.addEventListener("change", () => {
    draw(document.getElementById(choice.dataset.section + "-curve"), specs[Number(choice.value)]);
  }));

  // -- the table of runs ----------------------------------------------------------------------------------------------

  const PAGE = 25;
  const formatted = (value, format) => {
    if (value === null || value === undefined) return "–";
    const found = /^(,?)\.(\d+)([fge%])$/.exec(format || "");
    if (!found) return String(Number(value.toPrecision(5)));
    const digits = Number(found[2]);
    if (found[3] === "f" && found[1]) {
      return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    }
    if (found[3] === "f") return value.toFixed(digits);
    if (found[3] === "e") return value.toExponential(digits);
    if (found[3] === "%") return (100 * value).toFixed(digits) + "%";
    return String(Number(value.toPrecision(digits || 1)));
  };
  const seconds = (value) => (value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));
  const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

  const pairs = (title, entries) => {
    if (!entries.length) return null;
    const body = make("tbody");
    for (const [name, value] of entries) body.append(make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
    return make("div", {}, make("h4", {}, title), make("table", {}, body));
  };
  const list = (title, items) => items.length
    ? make("div", {}, make("h4", {}, title), make("ul", {}, ...items.map((item) => make("li", {}, item))))
    : null;

  const runTable = (host) => {
    const data = read(host.dataset.runs);
    const count = data.task.length;
    const columns = [
      { title: "task", value: (i) => data.tasks[data.task[i]], name: true },
      { title: "method", value: (i) => data.methods[data.method[i]], name: true },
      { title: "seed", value: (i) => data.seed[i], number: true },
      { title: "status", value: (i) => data.statuses[data.status[i]], status: true },
      ...data.metrics.map((metric) => ({
        title: metric.heading, value: (i) => metric.values[i], number: true, text: (v) => formatted(v, metric.format),
      })),
      { title: "seconds", value: (i) => data.seconds[i], number: true, text: seconds },
    ];
    const state = { sort: null, down: false, page: 0, text: "", status: "", task: "", method: "", opened: new Set(), rows: [] };

    // What the search box looks in, made when it is first used.
    let haystack = null;
    const searched = (i) => {
      if (!haystack) haystack = new Array(count);
      if (!haystack[i]) {
        const detail = data.details[i];
        haystack[i] = [
          columns[0].value(i), columns[1].value(i), "seed " + data.seed[i], columns[3].value(i),
          detail ? JSON.stringify(data.params[detail.params]) : "", detail && detail.failure ? detail.failure.message : "",
          detail ? detail.warnings.map((w) => data.warnings[w]).join(" ") : "",
        ].join("\n").toLowerCase();
      }
      return haystack[i];
    };

    const select = (label, key, options) => {
      const box = make("select", { on: { change: (event) => { state[key] = event.target.value; state.page = 0; refresh(); } } },
        make("option", { value: "" }, "all"));
      options.forEach((option, at) => box.append(make("option", { value: at }, option)));
      return make("label", {}, label, box);
    };
    const search = make("input", {
      type: "search", on: { input: (event) => { state.text = event.target.value.trim().toLowerCase(); state.page = 0; refresh(); } },
    });
    const counter = make("span", { "aria-live": "polite" });
    const previous = make("button", { type: "button", on: { click: () => { state.page -= 1; refresh(); } } }, "Previous");
    const next = make("button", { type: "button", on: { click: () => { state.page += 1; refresh(); } } }, "Next");
    const body = make("tbody");
    const head = make("tr", {}, make("th", { scope: "col" }, make("span", { class: "small" }, "open")));
    const heads = columns.map((column, at) => {
      const button = make("button", { type: "button", on: { click: () => {
        state.down = state.sort === at ? !state.down : false;
        state.sort = at;
        state.page = 0;
        refresh();
      } } }, column.title);
      const cell = make("th", { scope: "col", "aria-sort": "none", class: column.number ? "num" : null }, button);
      head.append(cell);
      return cell;
    });
    host.append(
      make("div", { class: "controls" },
        make("label", { class: "wide" }, "search names, parameters, messages", search),
        select("task", "task", data.tasks), select("method", "method", data.methods), select("status", "status", data.statuses)),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All runs" },
        make("table", {}, make("thead", {}, head), body)),
      make("div", { class: "pager" }, previous, next, counter));

    const refresh = () => {
      const rows = [];
      for (let i = 0; i < count; i += 1) {
        if (state.task !== "" && data.task[i] !== Number(state.task)) continue;
        if (state.method !== "" && data.method[i] !== Number(state.method)) continue;
        if (state.status !== "" && data.status[i] !== Number(state.status)) continue;
        if (state.text && !state.text.split(/\s+/).every((word) => searched(i).includes(word))) continue;
        rows.push(i);
      }
      if (state.sort !== null) {
        const { value } = columns[state.sort];
        const order = state.down ? -1 : 1;
        rows.sort((a, b) => {
          const x = value(a), y = value(b);
          if (x === null || y === null) return (x === null) - (y === null); // unknown last, whatever the order
          return order * (typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true })) || a - b;
        });
      }
      heads.forEach((cell, at) => {
        cell.setAttribute("aria-sort", at !== state.sort ? "none" : state.down ? "descending" : "ascending");
      });
      const pages = Math.max(1, Math.ceil(rows.length / PAGE));
      state.page = Math.min(Math.max(0, state.page), pages - 1);
      const from = state.page * PAGE;
      body.replaceChildren();
      for (const i of rows.slice(from, from + PAGE)) addRow(i);
      previous.disabled = state.page === 0;
      next.disabled = state.page >= pages - 1;
      counter.textContent = rows.length
        ? `${from + 1} to ${Math.min(from + PAGE, rows.length)} of ${rows.length}${rows.length < count ? ` (${count} in all)` : ""}`
        : `no run fits (${count} in all)`;
    };

    const addRow = (i) => {
      const id = `${host.id}-detail-${i}`;
      const title = `${columns[0].value(i)}, ${columns[1].value(i)}, seed ${data.seed[i]}`;
      const button = make("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id, "aria-label": "Details of " + title });
      const row = make("tr", { class: data.statuses[data.status[i]] }, make("td", {}, button));
      for (const column of columns) {
        const value = column.value(i);
        row.append(make("td", { class: column.number ? "num" : column.name ? "name" : column.status ? "status" : null },
          column.text ? column.text(value) : String(value)));
      }
      body.append(row);
      const open = () => {
        const cell = make("td", { colspan: columns.length + 1 });
        row.after(make("tr", { class: "detail", id }, cell));
        button.setAttribute("aria-expanded", "true");
        state.opened.add(i);
        cell.append(details(i));
        cell.querySelectorAll("[data-curve]").forEach((place) => draw(place, curveSpec(data.details[i].curves[Number(place.dataset.curve)])));
      };
      button.addEventListener("click", () => {
        if (!state.opened.delete(i)) { open(); return; }
        document.getElementById(id).remove();
        button.setAttribute("aria-expanded", "false");
      });
      if (state.opened.has(i)) open();
    };

    const details = (i) => {
      const detail = data.details[i];
      if (!detail) return make("p", { class: "note" }, "The details of this run are not on this page; they are in its run.json in the store.");
      const place = data.environments[detail.environment];
      const curves = detail.curves.map((curve, at) => make("div", {}, make("h4", {}, curve.name), make("div", { class: "chart", "data-curve": at })));
      const whole = make("div", {});
      if (detail.failure) {
        whole.append(make("p", { class: "bad mono" }, detail.failure.type + ": " + detail.failure.message));
        if (detail.failure.traceback) whole.append(make("pre", { tabindex: "0" }, detail.failure.traceback));
      }
      whole.append(make("div", { class: "grid" },
        pairs("Parameters", Object.entries(data.params[detail.params]).map(([k, v]) => [k, shown(v)])),
        pairs("Task parameters", Object.entries(data.params[detail.task_params]).map(([k, v]) => [k, shown(v)])),
        pairs("Metrics", data.metrics.map((metric) => [metric.heading, metric.values[i] === null ? "–" : String(metric.values[i])])),
        pairs("Cost", [["wall seconds", seconds(data.seconds[i])], ["CPU seconds", seconds(detail.cpu)], ["peak memory", (detail.memory / 2 ** 20).toFixed(0) + " MiB"]]),
        pairs("Provenance", [["key", detail.key], ["started", detail.started], ["data", data.fingerprints[detail.data]],
          ["machine", place.machine], ["Python", place.python], ["packages", place.packages], ["device", place.device]]),
        list("Warnings", detail.warnings.map((w) => data.warnings[w])),
        list("Artifacts", data.artifacts[detail.artifacts])));
      if (curves.length) whole.append(make("div", { class: "curves" }, ...curves));
      if (detail.curves_left_out) whole.append(make("p", { class: "note" }, "This run kept curves that are not on this page."));
      return whole;
    };

    const curveSpec = (curve) => ({
      data: { values: curve.x.map((x, at) => ({ x, y: curve.y[at] })) }, mark: { type: "line", color: "var(--accent)", strokeWidth: 1.5 },
      width: "container", height: 120, autosize: { type: "fit", contains: "padding" },
      encoding: {
        x: { field: "x", type: "quantitative", title: curve.x_label, scale: { zero: false, nice: false } },
        y: { field: "y", type: "quantitative", title: null, scale: { zero: false } },
      },
    });

    refresh();
  };
  document.querySelectorAll("[data-runs]").forEach(runTable);
})();
