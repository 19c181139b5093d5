"use strict";
// Puts the report together from the data in the page.

const data = JSON.parse(document.getElementById("data").textContent);
const summary = data.summary;

function section(id, title, note, ...content) {
  document.getElementById("sections").append(
    el("section", { id, "aria-labelledby": `${id}-title` },
      el("h2", { id: `${id}-title` }, title),
      el("p", { class: "note" }, note), ...content));
  document.getElementById("contents").append(
    el("li", {}, el("a", { href: `#${id}` }, title)));
}

function closed(title, content) {
  return el("details", {}, el("summary", {}, title), content);
}

function swatch(background) {
  return el("i", { style: `background: ${background}` });
}

// Between backticks stands code.
function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

function header() {
  const script = summary.command.split(" ").find((word) => word.endsWith(".py"));
  if (script) {
    const name = script.split("/").pop();
    document.title = `${name}: hvd_keras report`;
    document.querySelector("h1").textContent = `Where the time of ${name} went`;
  }
  const began = new Date(1000 * summary.began_unix_s).toISOString();
  document.getElementById("command").append(
    el("time", { datetime: began }, `${began.slice(0, 16).replace("T", " ")} UTC`),
    ...(summary.command ? [" \u00b7 ", el("code", {}, summary.command)] : []));
  const texts = [
    `${plural(summary.size, "rank")} on ${plural(summary.num_hosts, "host")}`,
    summary.has_steps ? plural(summary.num_steps, "step") : "no steps recorded",
    plural(summary.num_collectives, "collective"),
    `${digits(summary.span_s)} s`,
  ];
  if (summary.num_recorded < summary.size) texts.push(`${summary.num_recorded} ranks left a record`);
  document.getElementById("subtitle").textContent = texts.join(" \u00b7 ");
}

function overview() {
  const shares = summary.shares;
  const card = (value, label) =>
    el("div", { class: "card" }, el("div", { class: "value" }, value), el("div", { class: "label" }, label));
  const cards = [
    card(percent(summary.efficiency), "scaling efficiency"),
    card(ms(summary.step_ms), summary.has_steps ? "a step, median" : "recorded"),
    card(percent(shares.transfer), "exposed transfer"),
    card(percent(shares.wait), "wait for the last rank"),
    card(percent(shares.input), "input"),
  ];
  document.getElementById("cards").append(...cards);
  const names = Object.keys(PARTS);
  const strip = el("div", { class: "strip", role: "img",
    "aria-label": names.map((name) => `${PARTS[name][0]} ${percent(shares[name])}`).join(", ") },
    ...names.map((name) => el("div", { title: `${PARTS[name][0]}: ${percent(shares[name])}`,
      style: `flex: ${shares[name] || 0} 0 0; background: var(--${name})` })));
  document.getElementById("strip").append(strip, legend(shares));
  const kinds = { problem: "Problem", hint: "Note", good: "Good" };
  document.getElementById("advice").append(...data.advice.map((one) =>
    el("li", { class: one.severity },
      el("div", { class: "kind" }, kinds[one.severity]),
      el("div", { class: "text" }, one.text),
      one.cure ? el("div", { class: "cure" }, ...withCode(one.cure)) : null)));
}

function legend(shares) {
  return el("div", { class: "legend" }, ...Object.entries(PARTS).map(([name, [title, meaning]]) =>
    el("div", {}, swatch(`var(--${name})`),
      el("span", {}, el("b", {}, `${title} ${percent(shares[name])}`), ` ${meaning}`))));
}

function partsSection() {
  const parts = data.parts;
  const total = (row) => d3.sum(row.ms);
  const columns = [
    { title: "Rank", value: (row) => row.rank, number: true },
    { title: "Host", value: (row) => row.host },
    ...parts.names.map((name, index) => ({ title: `${PARTS[name][0]}, ms`, number: true,
      value: (row) => row.ms[index], text: (row) => digits(row.ms[index]) })),
    { title: "Together, ms", number: true, value: total, text: (row) => digits(total(row)) },
  ];
  const means = parts.kind === "rank" ? "" : " Each bar is the mean of its ranks; the table has all of them.";
  section("parts", "A mean step of each rank",
    "A step goes from its begin to the begin of the next one. Scaling efficiency is the share of " +
    "compute, overlapped and input: an estimate of what the ranks would keep without each other. " +
    "A call is exposed if its rank waits for it: after the last call of a step, or where what follows " +
    "comes as much later as the call takes longer." + means,
    figure(partsChart(parts)),
    closed("Table of all ranks", table("Mean step of each rank", columns, parts.rows)));
}

function lastSection() {
  const last = data.last;
  const number = (title, name) => ({ title, number: true, value: (row) => row[name],
    text: (row) => digits(row[name]) });
  const rows = [...last.rows].sort((a, b) => b.total_ms - a.total_ms);
  const columns = [
    { title: "Rank", value: (row) => row.rank, number: true },
    { title: "Host", value: (row) => row.host },
    { title: "Pid", value: (row) => row.pid, number: true },
    { title: "Times last", value: (row) => row.times, number: true },
    { title: `Of ${last.unit}`, value: (row) => row.share, number: true,
      cell: (row) => [el("span", { class: "bar", style: `width: ${(48 * row.share).toFixed(1)}px` }),
        percent(row.share)] },
    number("By, ms", "late_ms"),
    number("Together, ms", "total_ms"),
    number("Input, ms a step", "input_ms"),
    number("Compute, ms a step", "compute_ms"),
  ];
  const close = last.num_close
    ? ` In ${plural(last.num_close, last.unit.slice(0, -1))} all came within the error of the clocks ` +
      `(${ms(summary.clock_error_ms)}): nobody counts as last there.`
    : "";
  section("last", "Who came last",
    (last.unit === "steps" ? "In each step, the collective that lost most time counts. " : "") +
    `The last rank was late by its arrival minus that of the median of the others. ` +
    `All ranks were seen in ${plural(last.num_units, last.unit.slice(0, -1))}.` + close,
    table("Ranks by the time that others lost to them", columns, rows));
}

function heatSection() {
  const heat = data.heat;
  if (!heat.rows.length || heat.edges_s.length < 2) return;
  const chart = heatChart(heat);
  const colors = heatColors();
  const scale = el("div", { class: "scale" }, "0 ms",
    el("i", { style: `background: linear-gradient(to right, ${colors.join(",")})` }), chart.most);
  const rows = heat.rows.map((row) => ({ label: row.label,
    mean: d3.mean(row.ms), most: d3.max(row.ms) ?? null,
    at: row.ms.length ? heat.edges_s[d3.maxIndex(row.ms)] ?? null : null }));
  const columns = [
    { title: heat.kind === "host" ? "Host" : "Rank", value: (row) => row.label },
    { title: "Mean, ms", number: true, value: (row) => row.mean ?? null, text: (row) => digits(row.mean) },
    { title: "Largest, ms", number: true, value: (row) => row.most, text: (row) => digits(row.most) },
    { title: "At, s", number: true, value: (row) => row.at, text: (row) => digits(row.at) },
  ];
  section("heat", "Lateness over time",
    "How long after the first rank each rank came to the collectives of that time, in the mean" +
    (heat.kind === "rank" ? "." : "; the latest rank of each row.") +
    " A row that stands out is a slow rank, a column a moment that was slow for many. Where nothing is, no " +
    "collective began.",
    figure(chart), scale, closed("Table", table("Lateness", columns, rows)));
}

function speedSection() {
  const speeds = data.speeds;
  if (!speeds.rows.length) return;
  const chart = speedChart(speeds);
  const columns = [
    { title: "Kind", value: (row) => row.kind },
    { title: "Bytes", number: true, value: (row) => row.num_bytes, text: (row) => bytes(row.num_bytes) },
    { title: "Collectives", number: true, value: (row) => row.num_collectives },
    { title: "10th percentile", number: true, value: (row) => row.slow, text: (row) => rate(row.slow) },
    { title: "Median", number: true, value: (row) => row.median, text: (row) => rate(row.median) },
    { title: "90th percentile", number: true, value: (row) => row.fast, text: (row) => rate(row.fast) },
    { title: "Of the best", number: true, value: (row) => row.of_best, text: (row) => percent(row.of_best) },
  ];
  const keys = el("div", { class: "facts" }, ...chart.kinds.map((kind, index) =>
    el("span", {}, swatch(chart.range[index % chart.range.length]), ` ${kind}`)));
  for (const one of keys.querySelectorAll("i")) {
    one.style.cssText += "; display: inline-block; width: 10px; height: 10px; border-radius: 5px";
  }
  const copy = speeds.copy === null
    ? "hvd-report --measure-copy, run on the machine of the job, adds how fast a core copies memory."
    : "A memory copy of one core was measured when this report was written.";
  section("speed", "Speed by size",
    "Bytes of one rank's input, divided by the time from the begin of a collective on its last rank to " +
    "the end on all. Dots are medians, lines go from the 10th to the 90th percentile. The dashed line is " +
    `the best median of this recording. ${copy}`,
    keys, figure(chart), closed("Table", table("Speed by size", columns, speeds.rows)));
}

function tensorSection() {
  const tensors = data.tensors;
  if (!tensors.rows.length) return;
  const columns = [
    { title: "Name", value: (row) => row.name, name: true },
    { title: "Kind", value: (row) => row.kind },
    { title: "Dtype", value: (row) => row.dtype },
    { title: "Tensors", number: true, value: (row) => row.num_tensors },
    { title: "Bytes", number: true, value: (row) => row.num_bytes, text: (row) => bytes(row.num_bytes) },
    { title: "Calls a step", number: true, value: (row) => row.calls, text: (row) => digits(row.calls) },
    { title: "Running, ms a step", number: true, value: (row) => row.running_ms,
      text: (row) => digits(row.running_ms) },
    { title: "Wait, ms a step", number: true, value: (row) => row.wait_ms, text: (row) => digits(row.wait_ms) },
  ];
  section("tensors", "The costliest tensors",
    "Running: from begin to end of its collective, shared by bytes among what runs together. Wait: from " +
    "its submission to that of the last rank. Both may hide behind computing. " +
    (tensors.num_names > tensors.rows.length
      ? `The first ${tensors.rows.length} of ${tensors.num_names} names.` : ""),
    table("Tensors and groups, the costliest first", columns, tensors.rows));
}

function fusionSection() {
  const fusion = data.fusion;
  if (!fusion.rows.length) return;
  const fact = (value, text) => el("span", {}, el("b", {}, value), ` ${text}`);
  const columns = [
    { title: "Tensors", value: (row) => row.label },
    { title: "Collectives", number: true, value: (row) => row.count },
  ];
  section("fusion", "Buckets and fusion",
    "Tensors reach a collective together by a bucket (one call with several tensors) or because the " +
    "coordinator fuses calls that are ready at the same time.",
    el("div", { class: "facts" },
      fact(digits(fusion.collectives_a_step), summary.has_steps ? "collectives a step" : "collectives"),
      fact(digits(fusion.tensors_a_collective), "tensors a collective"),
      fact(digits(fusion.calls_a_collective),
        `call${fusion.calls_a_collective === 1 ? "" : "s"} a collective`),
      fact(bytes(fusion.median_bytes), "a collective, median")),
    figure(fusionChart(fusion)),
    closed("Table", table("Collectives by the number of their tensors", columns, fusion.rows)));
}

function settingsSection() {
  const hostColumns = [
    { title: "Host", value: (row) => row.host, name: true },
    { title: "Ranks", value: (row) => row.ranks },
    { title: "Clock error, ms", number: true, value: (row) => row.clock_error_ms,
      text: (row) => digits(row.clock_error_ms) },
    { title: "Waits for other hosts", number: true, value: (row) => row.wire,
      text: (row) => percent(row.wire) },
  ];
  const columns = [
    { title: "Setting", value: (row) => row.name, name: true },
    { title: "Value", value: (row) => row.value, name: true },
    { title: "Ranks", value: (row) => row.ranks },
  ];
  section("settings", "Settings and machines",
    "As each rank recorded them when it started. The wait for other hosts is its share of the time in " +
    "which collectives of several hosts run.",
    table("Hosts", hostColumns, data.hosts),
    table("Settings", columns, data.settings));
}

if (summary.reads_in_steps) PARTS.compute[1] += "; with its input on TensorFlow and JAX";
header();
overview();
partsSection();
lastSection();
heatSection();
speedSection();
tensorSection();
fusionSection();
settingsSection();
document.getElementById("footer").textContent =
  `Written by hvd-report of hvd_keras ${data.version}. docs/report.md says how to read it.`;
