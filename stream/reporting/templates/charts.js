// The charts of a page, drawn by uPlot. Without this script, the page describes them in text.
"use strict";
(() => {
  const DASHES = [[], [12, 4], [4, 3], [14, 4, 3, 4], [1, 3]];
  const COLOURS = 6;
  const START_SHARE = 1 / 200;
  const FEW_POINTS = 20;
  const AXIS_PX = 62; // width of the labels of a y axis
  const NAME_PX = 7; // width of a character in a label
  const NAME_MAX = 24; // characters in a label
  const SLANTED_PX = 18; // room for a slanted label
  const HEIGHT_PX = { full: 340, half: 260 };
  const PAPER_PX = { full: 660, half: 320 };
  const DISTRIBUTIONS = { linear: 1, log: 3, log2: 3, symlog: 4 };
  const LEVEL_FACTOR = 1.6; // a level that is further above the lines is labelled at the top

  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const series = (number) => (number === null ? "ink" : `series-${number % COLOURS}`);
  const dash = (number) => DASHES[Math.floor(number / COLOURS) % DASHES.length];

  // Formatting of numbers.

  const digits = (value) => String(Number(value.toPrecision(6)));
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return `${digits(value / 1e6)}M`;
    return size >= 1e3 ? `${digits(value / 1e3)}k` : digits(value);
  };
  const onAxis = {
    share: (value) => `${digits(100 * value)}%`,
    ms: (value) => (value < 1000 ? `${digits(value)} ms` : `${(value / 1000).toLocaleString("en")} s`),
    count: short,
    number: short,
  };
  const shortened = (name) => (name.length > NAME_MAX ? `${name.slice(0, NAME_MAX - 1)}…` : name);
  const powerOfTwo = (value) => `2${String(Math.round(Math.log2(value))).replace(/[-\d]/g, (each) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(each)])}`;
  const exact = {
    share: (value) => `${digits(Number((100 * value).toPrecision(3)))}%`,
    ms: (value) => onAxis.ms(Number(value.toPrecision(3))),
    count: (value) => Math.round(value).toLocaleString("en"),
    number: (value) => digits(Number(value.toPrecision(4))),
  };

  // Creation of elements.

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const button = (label, action) => {
    const made = element("button", { type: "button" }, label);
    made.addEventListener("click", () => action(made));
    return made;
  };
  const swatch = (number) => {
    const space = "http://www.w3.org/2000/svg";
    const drawn = document.createElementNS(space, "svg");
    const line = document.createElementNS(space, "line");
    drawn.setAttribute("viewBox", "0 0 28 8");
    drawn.setAttribute("aria-hidden", "true");
    for (const [name, value] of Object.entries({ x1: 0, x2: 28, y1: 4, y2: 4 })) line.setAttribute(name, value);
    line.style.stroke = `var(--${series(number)})`;
    line.style.strokeDasharray = dash(number).join(" ");
    drawn.append(line);
    return drawn;
  };
  const save = (name, type, parts) => {
    const address = URL.createObjectURL(new Blob(parts, { type }));
    element("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = (rows) => rows.map((row) => `${row.map(cell).join(",")}\n`);
  const page = document.title.split(" – ")[0].replace(/[^A-Za-z0-9]+/g, "-").toLowerCase();

  // Linear interpolation between two points of a line.
  const at = (xs, ys, x) => {
    if (!xs.length || x < xs[0] || x > xs.at(-1)) return null;
    const after = xs.findIndex((each) => each >= x);
    if (xs[after] === x) return ys[after];
    const share = (x - xs[after - 1]) / (xs[after] - xs[after - 1]);
    return ys[after - 1] + share * (ys[after] - ys[after - 1]);
  };

  // The labels of a logarithmic axis: as many powers as there is room for, and numbers between them if there are few powers.
  const base = (axis) => (axis.scale === "log2" ? 2 : 10);
  const logarithmic = (low, high, most, power) => {
    const [first, last] = [low, high].map((end) => Math.log(end) / Math.log(power));
    const step = Math.max(1, Math.ceil((last - first) / most));
    const finer = power === 2 ? [] : [[1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5], [1, 2, 5]];
    const between = finer.find((factors) => (last - first) * factors.length <= most) ?? [1];
    const found = [];
    for (let each = Math.floor(first / step) * step; each <= last; each += step) {
      found.push(...between.map((factor) => factor * power ** each));
    }
    return found.filter((each) => each >= low && each <= high);
  };

  // The legend of several charts. A click on a name hides its lines; the legend shows the values under the pointer.
  class Legend {
    constructor(place) {
      this.place = place;
      this.views = [];
      this.off = new Set();
      this.outputs = new Map();
    }

    add(view) {
      this.views.push(view);
      for (const { label, number } of view.chart.lines) {
        if (this.outputs.has(label)) continue;
        const output = element("output");
        const made = button("", () => {
          if (!this.off.delete(label)) this.off.add(label);
          made.setAttribute("aria-pressed", !this.off.has(label));
          this.views.forEach((each) => each.draw());
        });
        made.append(swatch(number), element("span", {}, label), output);
        made.setAttribute("aria-pressed", "true");
        this.outputs.set(label, output);
        this.place.append(made);
      }
    }

    tell(values) {
      for (const [label, output] of this.outputs) output.textContent = values.get(label) ?? "";
    }
  }

  class View {
    constructor(figure, chart, legend) {
      this.chart = chart;
      this.all = legend;
      this.isLog = { x: chart.x.scale !== "linear", y: chart.y.scale !== "linear" };
      this.against = null;
      this.plot = element("div", { class: "plot", role: "img", "aria-label": chart.alt });
      this.where = element("span", { class: "where" });
      this.reset = button("whole range", () => this.draw());
      figure.classList.add("has-plot");
      figure.append(this.tools(), this.plot);
      this.draw();
      legend.add(this);
      new ResizeObserver(() => this.resize()).observe(this.plot);
    }

    tools() {
      const tools = element("div", { class: "tools" });
      for (const axis of ["x", "y"]) {
        if (this.chart[axis].names.length) continue;
        const made = button(`log ${axis}`, () => {
          this.isLog[axis] = !this.isLog[axis];
          made.setAttribute("aria-pressed", this.isLog[axis]);
          this.draw();
        });
        made.setAttribute("aria-pressed", this.isLog[axis]);
        tools.append(made);
      }
      if (this.chart.compares) tools.append(this.comparison());
      tools.append(button("CSV", () => this.export()), this.reset, this.where);
      return tools;
    }

    comparison() {
      const options = [
        ["", "right answers"],
        ...this.chart.levels.map((level, i) => [`level ${i}`, level.label]),
        ...this.chart.lines.map((line, i) => [`line ${i}`, line.label]),
      ];
      const made = element("select", {}, ...options.map(([value, text]) => element("option", { value }, text)));
      made.addEventListener("change", () => {
        const [kind, number] = made.value.split(" ");
        this.against = kind ? this.chart[`${kind}s`][number] : null;
        this.draw();
      });
      return element("label", {}, "against ", made);
    }

    // The data of a line: x, y, and the limits of its band.
    shown(line) {
      const { chart, against } = this;
      const xs = chart.xs[line.x];
      const isHidden = (x) => chart.hides_start && !this.isLog.x && x < xs.at(-1) * START_SHARE;
      const subtracted = (x) => {
        if (against === null) return 0;
        return against.is_slope ? against.y * x : at(chart.xs[against.x], against.y, x);
      };
      const columns = [[], [], [], []];
      xs.forEach((x, i) => {
        const less = subtracted(x);
        if (isHidden(x) || less === null || (this.isLog.x && chart.x.scale !== "symlog" && x <= 0)) return;
        const values = [line.y[i], line.low[i], line.high[i]].map((value) => {
          if (value === null || value === undefined) return null;
          const left = value - less;
          return this.isLog.y && left <= 0 ? null : left;
        });
        columns[0].push(x);
        values.forEach((value, place) => columns[place + 1].push(value));
      });
      return columns;
    }

    draw() {
      this.drawn?.destroy();
      this.reset.hidden = true;
      const { chart } = this;
      const lines = chart.lines.filter((line) => !this.all.off.has(line.label));
      this.lines = lines;
      this.where.textContent = "";
      this.data = uPlot.join(lines.length ? lines.map((line) => this.shown(line)) : [[[0, 1], [null, null]]]);
      const drawnSeries = [{}];
      const bands = [];
      for (const line of lines) {
        const place = drawnSeries.length;
        const stroke = () => colour(series(line.number));
        const common = { spanGaps: true, points: { show: false } };
        const few = chart.xs[line.x].length < FEW_POINTS && !chart.is_pointwise;
        const width = chart.is_pointwise ? 0 : 2;
        drawnSeries.push({ ...common, stroke, width, dash: dash(line.number), points: { show: few, size: 5 } });
        drawnSeries.push({ ...common, width: 0 }, { ...common, width: 0 });
        if (line.high.length && !chart.is_pointwise) bands.push({ series: [place + 2, place + 1], fill: () => `${stroke()}30` });
      }
      this.drawn = new uPlot(
        {
          ...this.size(),
          legend: { show: false },
          series: drawnSeries,
          bands,
          scales: { x: this.scale("x"), y: this.scale("y") },
          axes: [this.axis("x"), this.axis("y")],
          cursor: { drag: { x: true, y: false }, points: { size: 7 }, y: false },
          padding: [chart.marks.length ? 20 : 8, 24, 0, 0], // on the right, half of the last label
          hooks: {
            draw: [() => this.references(), () => this.points()],
            setCursor: [(u) => this.tell(u.cursor.idx)],
            setScale: [(u, key) => key === "x" && this.zoomed()],
          },
        },
        this.data,
        this.plot,
      );
      this.tell(null);
    }

    size() {
      const kind = this.chart.is_half ? "half" : "full";
      const width = root.classList.contains("print") ? PAPER_PX[kind] : Math.max(this.plot.clientWidth, 200);
      return { width, height: HEIGHT_PX[kind] + this.slant(width) };
    }

    // The additional height of the names on the x axis if they are slanted, because they are wider than their places.
    slant(width) {
      const { names } = this.chart.x;
      const longest = NAME_PX * Math.max(0, ...names.map((name) => shortened(name).length));
      return (width - AXIS_PX) / names.length < longest + NAME_PX ? longest * Math.SQRT1_2 : 0;
    }

    resize() {
      const size = this.size();
      if (size.width !== this.drawn.width) this.drawn.setSize(size);
    }

    scale(axis) {
      const { scale, form } = this.chart[axis];
      const isLog = this.isLog[axis];
      const kind = isLog ? (scale === "linear" ? "log" : scale) : "linear";
      const range = (u, low, high) => {
        if (low === null || high === null) return isLog ? [0.1, 1] : [0, 1];
        if (axis === "x") {
          const isWhole = !isLog && low === this.data[0][0] && low > 0;
          if (this.chart.x.names.length) return [low - 0.5, high + 0.5];
          return isWhole ? [0, high] : low === high ? [low - 0.5, high + 0.5] : [low, high];
        }
        if (isLog) return [low * 0.85, high * 1.2];
        const { min, max } = u.scales.x;
        const isZoomed = min !== null && (min > this.data[0][0] || max < this.data[0].at(-1));
        if (isZoomed) return [low - (high - low || 1) * 0.05, high + (high - low || 1) * 0.05];
        if (this.chart.y_limits) return this.chart.y_limits;
        const bottom = Math.min(0, low);
        const level = Math.max(0, ...this.chart.levels.filter((each) => !each.is_slope).map((each) => each.y));
        const top = level > high && level < high * LEVEL_FACTOR ? level : high;
        const room = (top - bottom || 1) * 0.05;
        return [bottom < 0 ? bottom - room : 0, form === "share" ? Math.min(1, top + room) : top + room];
      };
      return { time: false, distr: DISTRIBUTIONS[kind], log: kind === "log2" ? 2 : 10, range };
    }

    axis(axis) {
      const { form, label, names } = this.chart[axis];
      const isX = axis === "x";
      const write = this.isLog[axis] && this.chart[axis].scale === "log2" ? powerOfTwo : onAxis[form];
      const made = {
        stroke: () => colour("muted"),
        font: "12px system-ui, sans-serif",
        grid: { show: !isX, stroke: () => colour("line"), width: 1 },
        ticks: { show: false },
        size: isX ? 30 : AXIS_PX,
        values: (u, splits) => splits.map((value) => (value === null ? "" : write(value))),
      };
      if (this.isLog[axis] && this.chart[axis].scale !== "symlog") {
        const room = isX ? 70 : 30;
        made.splits = (u, place, low, high) => logarithmic(low, high, (isX ? u.width : u.height) / room, base(this.chart[axis]));
        made.filter = (u, splits) => splits;
      }
      if (this.isLog[axis] && this.chart[axis].scale === "symlog") {
        made.filter = (u, splits) => splits.map((value) => (value === 0 || Number.isInteger(Math.log10(value)) ? value : null));
      }
      if (names.length) {
        const every = (u) => Math.ceil((SLANTED_PX * names.length) / (u.width - AXIS_PX));
        made.splits = (u) => names.map((_, place) => place).filter((place) => place % every(u) === 0);
        made.values = (u, splits) => splits.map((place) => shortened(names[place]));
        made.rotate = (u) => (this.slant(u.width) ? 45 : 0);
        made.size = (u) => 30 + this.slant(u.width);
      }
      if (label) Object.assign(made, { label, labelSize: 22, labelFont: "12px system-ui, sans-serif" });
      return made;
    }

    // Values with their intervals, side by side at each x.
    points() {
      if (!this.chart.is_pointwise) return;
      const { ctx } = this.drawn;
      const px = window.devicePixelRatio;
      const room = this.drawn.valToPos(1, "x", true) - this.drawn.valToPos(0, "x", true);
      const step = Math.min(8 * px, (0.7 * room) / this.lines.length);
      ctx.save();
      this.lines.forEach((line, number) => {
        ctx.strokeStyle = ctx.fillStyle = colour(series(line.number));
        ctx.lineWidth = 2 * px;
        this.chart.xs[line.x].forEach((at, i) => {
          const x = this.drawn.valToPos(at, "x", true) + (number - (this.lines.length - 1) / 2) * step;
          const [y, low, high] = [line.y, line.low, line.high].map(({ [i]: value = null }) => (value === null ? null : this.drawn.valToPos(value, "y", true)));
          if (y === null) return;
          ctx.beginPath();
          if (low !== null && high !== null) [low, high].forEach((end, first) => (first ? ctx.lineTo(x, end) : ctx.moveTo(x, end)));
          ctx.stroke();
          ctx.beginPath();
          ctx.arc(x, y, 3.5 * px, 0, 2 * Math.PI);
          ctx.fill();
        });
      });
      ctx.restore();
    }

    // Levels and marks, in the colour of captions.
    references() {
      const { chart, drawn } = this;
      const { ctx, bbox } = drawn;
      const px = window.devicePixelRatio;
      const right = bbox.left + bbox.width;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("muted");
      ctx.font = `${11.5 * px}px system-ui, sans-serif`;
      ctx.lineWidth = px;
      ctx.setLineDash([4 * px, 3 * px]);
      const stroke = (points) => {
        ctx.beginPath();
        points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
        ctx.stroke();
      };
      const y = (value) => drawn.valToPos(value, "y", true);
      const x = (value) => drawn.valToPos(value, "x", true);
      const { min, max } = drawn.scales.x;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
      ctx.clip();
      for (const level of chart.levels) {
        if (!level.is_slope && level.y > drawn.scales.y.max) {
          ctx.textAlign = "right";
          ctx.textBaseline = "top";
          ctx.fillText(`${level.label} ${exact[chart.y.form](level.y)} ↑`, right - 4 * px, bbox.top + 2 * px);
          continue;
        }
        const { against } = this;
        const value = (place) => {
          if (!level.is_slope) return level.y;
          if (against === null) return level.y * place;
          const less = against.is_slope ? against.y * place : at(chart.xs[against.x], against.y, place);
          return less === null ? null : level.y * place - less;
        };
        const points = [];
        for (let i = 0; i <= 100; i += 1) {
          const place = this.isLog.x && min > 0 ? min * (max / min) ** (i / 100) : min + ((max - min) * i) / 100;
          const found = value(place);
          if (found !== null && !(this.isLog.y && found <= 0)) points.push([x(place), y(found)]);
        }
        stroke(points);
        const named = points.findLast(([, height]) => height > bbox.top + 14 * px) ?? [right, bbox.top];
        ctx.textAlign = "right";
        ctx.textBaseline = "bottom";
        ctx.fillText(level.label, named[0] - 4 * px, named[1] - 2 * px);
      }
      for (const mark of chart.marks) {
        if (mark.x < min || mark.x > max) continue;
        const place = x(mark.x);
        const isLeft = place < bbox.left + bbox.width / 2;
        ctx.strokeStyle = mark.number === null ? ctx.fillStyle : colour(series(mark.number));
        stroke([[place, bbox.top], [place, bbox.top + bbox.height]]);
        ctx.textAlign = isLeft ? "left" : "right";
        ctx.textBaseline = "bottom";
        ctx.fillText(mark.label, place, bbox.top - 4 * px);
      }
      ctx.restore();
      ctx.restore();
    }

    // The values under the pointer.
    tell(place) {
      const { chart } = this;
      const found = new Map();
      this.where.textContent = place === null ? "" : `${this.place(this.data[0][place])} ${chart.x.label}`;
      this.lines.forEach((line, number) => {
        if (place === null) return;
        const value = (column) => {
          const values = this.data[1 + 3 * number + column];
          for (let i = place; i >= 0; i -= 1) if (values[i] !== null && values[i] !== undefined) return values[i];
          return null;
        };
        const [mean, low, high] = [0, 1, 2].map(value);
        if (mean === null) return;
        const text = exact[chart.y.form](mean);
        const spread = low !== null && high !== null ? exact[chart.y.form]((high - low) / 2) : "";
        found.set(line.label, spread ? `${text.replace("%", "")} ± ${spread}` : text);
      });
      this.all.tell(found);
    }

    place(x) {
      const { form, names } = this.chart.x;
      return names.length ? names[x] : exact[form](x);
    }

    zoomed() {
      const xs = this.data[0];
      const { min, max } = this.drawn?.scales.x ?? {};
      this.reset.hidden = min === undefined || (min <= xs[0] && max >= xs.at(-1));
    }

    export() {
      const { chart } = this;
      const joined = uPlot.join(
        chart.lines.map((line) => {
          const columns = [chart.xs[line.x], line.y];
          return line.low.length ? [...columns, line.low, line.high] : columns;
        }),
      );
      const names = chart.lines.flatMap(({ label, low }) => (low.length ? [label, `${label} low`, `${label} high`] : [label]));
      const rows = joined[0].map((x, i) => [chart.x.names[x] ?? x, ...joined.slice(1).map((column) => column[i])]);
      save(`${page}-${chart.key}.csv`, "text/csv", csv([[chart.x.label || chart.x.form, ...names], ...rows]));
    }
  }

  const views = [];
  const legends = new Map([...document.querySelectorAll(".charts")].map((each) => [each, new Legend(each.querySelector(".legend"))]));
  const figures = new Map([...document.querySelectorAll("[data-chart]")].map((each) => [each.dataset.chart, each]));
  for (const chart of JSON.parse(document.getElementById("charts").textContent)) {
    const figure = figures.get(chart.key);
    views.push(new View(figure, chart, legends.get(figure.closest(".charts"))));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => views.forEach((view) => view.draw()));
  const onPaper = (isPaper) => {
    root.classList.toggle("print", isPaper);
    views.forEach((view) => view.draw());
  };
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((each) => (each.open = true));
    onPaper(true);
  });
  addEventListener("afterprint", () => onPaper(false));

  // Downloads of the runs.

  const packed = document.getElementById("runs");
  const downloads = document.getElementById("downloads");
  if (packed && downloads && "DecompressionStream" in window) {
    const unpacked = async () => {
      const text = atob(packed.textContent.replaceAll("-", "+").replaceAll("_", "/"));
      const bytes = Uint8Array.from(text, (each) => each.charCodeAt(0));
      return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    };
    const flat = (value, name) => {
      if (value === null || typeof value !== "object") return [[name, value]];
      if (Array.isArray(value)) return [];
      return Object.entries(value).flatMap(([key, each]) => flat(each, name ? `${name}.${key}` : key));
    };
    const table = (runs) => {
      const rows = runs.map((run) => new Map(flat(run, "")));
      const names = [...new Set(rows.flatMap((row) => [...row.keys()]))];
      return csv([names, ...rows.map((row) => names.map((name) => row.get(name)))]);
    };
    downloads.append(
      button("all as JSON", async () => save(`${page}.json`, "application/json", [await unpacked()])),
      button("results as CSV", async () => save(`${page}.csv`, "text/csv", table(JSON.parse(await unpacked()).runs))),
    );
    downloads.hidden = false;
  }
})();
