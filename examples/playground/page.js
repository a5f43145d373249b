// Draws what the server reports. Every number comes from /api/run; nothing is decided here.
'use strict';

const form = document.getElementById('setup');
const find = (id) => document.getElementById(id);
const KINDS = ['admitted', 'delayed', 'denied', 'unavailable'];
const FIRST = 'algorithm=gcra&compare=fixed-window&limit=20&period=minute&traffic=edge&load=100';

// The run on the page: the first line of the response, the frames after it, and what draws the sides.
let run = { heading: null, frames: [], sides: [], reader: null };

// --- the setup and the address

function query() {
  const values = new URLSearchParams(new FormData(form));
  return [...values].map(([name, value]) => `${name}=${value.trim()}`).join('&');
}

function fill(search) {
  for (const [name, value] of new URLSearchParams(search)) {
    const field = form.elements.namedItem(name);
    if (field) field.value = value;
  }
}

function showProblem(problem) {
  for (const field of form.elements) {
    field.removeAttribute('aria-invalid');
    field.removeAttribute('aria-describedby');
  }
  find('problem').textContent = problem?.error ?? '';
  const field = problem && form.elements.namedItem(problem.field);
  field?.setAttribute('aria-invalid', 'true');
  field?.setAttribute('aria-describedby', 'problem');
}

// --- a run

async function start(search) {
  run.reader?.cancel().catch(() => {});
  const mine = run = { heading: null, frames: [], sides: [], reader: null };
  setState('running');
  try {
    const response = await fetch(`/api/run?${search}`);
    if (mine !== run) return response.body?.cancel();
    if (!response.ok) {
      showProblem(await response.json());
      announce(`This setup cannot be run.${document.querySelector('.side') ? ' The charts show the setup before it.' : ''}`);
      return end('invalid');
    }
    showProblem(null);
    mine.reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await mine.reader.read();
      if (mine !== run) return;
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) receive(JSON.parse(line));
      redraw();
    }
    end(mine.heading && mine.frames.length === mine.heading.frames ? 'done' : 'stopped');
  } catch (error) {
    if (mine !== run) return;
    showProblem({ error: `The server does not answer: ${error.message}` });
    end('failed');
  }
}

function receive(value) {
  if (value.error) return showProblem(value);
  if (!run.heading) {
    run.heading = value;
    build();
    const speed = value.shown ? `; each second shows ${length(value.span / value.shown * 1_000)}` : '';
    announce(`${count(value.requests, 'request')} in ${length(value.span)}${speed}.`);
    return;
  }
  run.frames.push(value);
  const perPeriod = run.heading.frames / (run.heading.edges.length - 1);
  if (form.elements.time.value !== 'instant' && run.frames.length % perPeriod === 0) announce(results());
}

// A disabled button would lose the focus, so `Stop` only looks disabled.
function setState(state) {
  document.body.dataset.state = state;
  find('stop').setAttribute('aria-disabled', state !== 'running');
}

function end(state) {
  setState(state);
  if (state === 'done') announce(results());
  if (state === 'stopped') announce(`Stopped. ${results()}`);
  redraw();
}

const announce = (text) => { find('summary').textContent = text; };
const count = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;

function totals(side) {
  return sum(run.frames.at(-1)?.sides[side].totals ?? []);
}

function results() {
  const { heading } = run;
  const parts = heading.sides.map((side, number) => {
    const [admitted, delayed, denied, unavailable] = totals(number);
    const rest = heading.requests - admitted - delayed - denied - unavailable;
    const words = [`admitted ${admitted}`, delayed && `delayed ${delayed}`, `denied ${denied}`,
      unavailable && `rejected ${unavailable} without a store`].filter(Boolean);
    const waiting = document.body.dataset.state === 'done' && rest ? `; ${rest} had no response yet` : '';
    return `${side.title}: ${words.join(', ')}${waiting}.`;
  });
  return `${count(heading.requests, 'request')}. ${parts.join(' ')}`;
}

// --- the sides

function build() {
  const { heading } = run;
  const roots = instances('side', 'sides');
  const codes = instances('code', 'codes');
  run.sides = heading.sides.map((side, number) => {
    const part = (selector) => roots[number].querySelector(selector);
    const code = (selector) => codes[number].querySelector(selector);
    roots[number].setAttribute('aria-label', side.title);
    part('h2').textContent = side.title;
    part('.policy').textContent = [`Policy: ${side.policy}.`, ...side.notes].join(' ');
    part('.lines').textContent = heading.clients.slice(0, 2).map((name, at) => `${at ? '- -' : '—'} ${name}`).join('  ');
    part('.numbers').open ||= heading.clients.length > 1;
    part('.admission').textContent = part('.rejection').textContent = 'none yet';
    code('h2').textContent = `${side.title}, as code`;
    code('.rust').textContent = side.rust;
    code('.toml').textContent = side.toml;
    return { part, seen: 0 };
  });
}

// As many clones of the template in the container as there are sides.
function instances(template, container) {
  const { children } = find(container);
  while (children.length > run.heading.sides.length) find(container).lastElementChild.remove();
  while (children.length < run.heading.sides.length) find(container).append(find(template).content.cloneNode(true));
  return children;
}

let drawing = 0;
function redraw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    if (!run.heading) return;
    find('progress').value = run.frames.length / run.heading.frames;
    run.sides.forEach(drawSide);
  });
}

function drawSide(side, number) {
  const sums = totals(number);
  KINDS.forEach((kind, at) => { side.part(`.totals .${kind} dd`).textContent = sums[at]; });
  for (; side.seen < run.frames.length; side.seen++) {
    const { admission, rejection } = run.frames[side.seen].sides[number];
    if (admission) side.part('.admission').textContent = admission;
    if (rejection) side.part('.rejection').textContent = rejection;
  }
  drawResponses(side.part('.responses'), number);
  drawLevel(side.part('.level'), number);
  drawTables(side, number);
}

// --- the charts

const LEFT = 34;
const BELOW = 18;
// Room for `store fails`.
const ABOVE = 16;

// The scale of a chart, its grid, and the outage behind it.
function frame(svg, height) {
  const width = svg.clientWidth || 300;
  const { frames, span, edges } = run.heading;
  const x = (at) => LEFT + (width - LEFT - 1) * at / frames;
  const label = (edge, at) => {
    const anchor = at === edges.length - 1 ? 'end' : at ? 'middle' : 'start';
    return `<text x="${x(edge / span * frames)}" y="${height - 4}" text-anchor="${anchor}">${time(edge)}</text>`;
  };
  const bottom = height - BELOW;
  let grid = run.frames.map((value, at) => value.fails
    ? `<rect class="outage" x="${x(at)}" y="0" width="${x(1) - LEFT}" height="${bottom}"/>` : '').join('');
  grid += edges.map((edge, at) => {
    const line = x(edge / span * frames);
    return `<line class="edge" x1="${line}" x2="${line}" y1="0" y2="${bottom}"/>${label(edge, at)}`;
  }).join('');
  const failing = run.frames.findIndex((value) => value.fails);
  const note = failing < 0 ? '' : `<text x="${x(failing) + 4}" y="12">store fails</text>`;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  return { width, x, bottom, grid, note };
}

function drawResponses(svg, number) {
  const { width, x, bottom, grid, note } = frame(svg, 210);
  // Narrow charts have fewer bars, so that their forms stay visible.
  const group = [1, 3, 5].find((frames) => x(frames) - LEFT >= 6) ?? 5;
  const grouped = run.sides.map((_, side) => groups(side, group));
  const counts = grouped[number];
  const most = Math.max(1, run.heading.peak, ...grouped.flat().flatMap(([a, b, c, d]) => [a + b, c + d]));
  const zero = (ABOVE + bottom) / 2;
  const unit = (zero - ABOVE) / most;
  const bar = x(group) - LEFT - 2;
  const rect = (kind, at, y, value) => {
    if (!value) return '';
    const inset = kind === 'admitted' ? 0 : 0.75;
    return `<rect class="${kind}" x="${x(at * group) + 1 + inset}" y="${y + inset}" width="${bar - 2 * inset}" height="${Math.max(1, value * unit - 2 * inset)}"/>`;
  };
  const bars = counts.map(([admitted, delayed, denied, unavailable], at) =>
    rect('admitted', at, zero - admitted * unit, admitted)
    + rect('delayed', at, zero - (admitted + delayed) * unit, delayed)
    + rect('denied', at, zero, denied)
    + rect('unavailable', at, zero + denied * unit, unavailable));
  const axis = `<line class="axis" x1="${LEFT}" x2="${width}" y1="${zero}" y2="${zero}"/>`;
  const labels = `<text x="${LEFT - 5}" y="${ABOVE + 4}" text-anchor="end">${most}</text><text x="${LEFT - 5}" y="${zero + 4}" text-anchor="end">0</text>`
    + `<text x="${LEFT - 5}" y="${bottom}" text-anchor="end">${most}</text>`;
  svg.innerHTML = grid + bars.join('') + axis + labels + note;
  run.sides[number].part('.unit').textContent = `per ${length(run.heading.span / run.heading.frames * group)}; rejections are below the axis`;
  const [a, b, c, d] = totals(number);
  svg.setAttribute('aria-label', `Responses over time, admissions above the axis and rejections below it: ${a} admitted, ${b} delayed, ${c} denied, ${d} rejected without a store. The numbers are in a table below.`);
}

// The counts of every `size` frames of a side together.
function groups(side, size) {
  const counts = run.frames.map((value) => value.sides[side].counts);
  return Array.from({ length: Math.ceil(counts.length / size) }, (_, at) => sum(counts.slice(at * size, (at + 1) * size)));
}

const sum = (counts) => KINDS.map((_, kind) => counts.reduce((total, each) => total + each[kind], 0));

function drawLevel(svg, number) {
  const { width, x, bottom, grid, note } = frame(svg, 130);
  const { capacity } = run.heading.sides[number];
  const y = (level) => bottom - (bottom - ABOVE) * Math.min(level, capacity) / capacity;
  // A step per frame, in parts if the store reported no level in between.
  const steps = (client) => {
    const parts = [];
    run.frames.forEach((value, at) => {
      const level = value.sides[number].levels[client] ?? null;
      if (level === null) return;
      const part = parts.at(-1);
      if (part?.end === at) {
        part.path += `V${y(level)}H${x(at + 1)}`;
        part.end = at + 1;
      } else {
        parts.push({ start: at, end: at + 1, path: `M${x(at)} ${y(level)}H${x(at + 1)}` });
      }
    });
    return parts;
  };
  const path = (kind, parts) => `<path class="${kind}" d="${parts.join('')}"/>`;
  const first = steps(0);
  const lines = path('under', first.map((part) => `${part.path}V${bottom}H${x(part.start)}Z`))
    + path('first', first.map((part) => part.path))
    + (run.heading.clients.length > 1 ? path('second', steps(1).map((part) => part.path)) : '');
  const levels = run.frames.map((value) => value.sides[number].levels[0]);
  const axis = `<line class="axis" x1="${LEFT}" x2="${width}" y1="${bottom}" y2="${bottom}"/>`;
  const labels = `<text x="${LEFT - 5}" y="${ABOVE + 4}" text-anchor="end">${capacity}</text><text x="${LEFT - 5}" y="${bottom}" text-anchor="end">0</text>`;
  svg.innerHTML = grid + axis + lines + labels + note;
  const known = levels.filter((level) => level !== null);
  svg.setAttribute('aria-label', known.length
    ? `Remaining units of ${run.heading.clients[0]} over time, of ${capacity}: lowest ${Math.min(...known)}, at the end ${known.at(-1)}.`
    : 'Remaining units: none reported.');
}

function drawTables(side, number) {
  const header = (first) => `<thead><tr><th scope="col">${first}</th>${['Admitted', 'Delayed', 'Denied', '503'].map((name) => `<th scope="col">${name}</th>`).join('')}</tr></thead>`;
  const row = (name, counts) => `<tr><th scope="row">${name}</th>${counts.map((value) => `<td>${value}</td>`).join('')}</tr>`;
  const last = run.frames.at(-1)?.sides[number].totals ?? [];
  side.part('.clients').innerHTML = header('Client') + run.heading.clients.map((name, at) => row(name, last[at] ?? [0, 0, 0, 0])).join('');
  const perPeriod = run.heading.frames / (run.heading.edges.length - 1);
  const rows = groups(number, perPeriod).map((counts, period) => row(`${period + 1}`, counts));
  side.part('.periods').innerHTML = header('Quarter of the run') + rows.join('');
}

const DAY = 86_400_000;

// A time since the start: a date if days matter, and a length otherwise.
function time(ms) {
  const { span, start } = run.heading;
  if (start !== null && span > 3 * DAY) {
    return new Date(start * 1000 + ms).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', timeZone: 'UTC' });
  }
  return length(ms, span);
}

// A length in the unit that suits `scale`.
function length(ms, scale = ms) {
  const units = [[DAY, 'd'], [3_600_000, 'h'], [60_000, 'min'], [1_000, 's'], [1, 'ms']];
  const [unit, name] = units.find(([unit]) => scale >= unit) ?? units.at(-1);
  return `${Math.round(ms / unit * 10) / 10} ${name}`;
}

// --- controls

let waiting = 0;
function changed(delay) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    history.replaceState(null, '', `?${query()}`);
    start(query());
  }, delay);
}

form.addEventListener('submit', (event) => { event.preventDefault(); changed(0); });
form.addEventListener('input', (event) => { if (event.target.name) changed(event.target.type === 'number' ? 350 : 0); });
find('stop').addEventListener('click', () => { run.reader?.cancel(); });
const setOutage = (fails) =>
  fetch('/api/outage', { method: 'PUT', headers: { 'content-type': 'application/json' }, body: JSON.stringify(fails) });
find('outage').addEventListener('change', async (event) => {
  await setOutage(event.target.checked);
  // A run under way shows the change. A result that is complete needs another run.
  if (document.body.dataset.state !== 'running') changed(0);
});

async function copy(button, text) {
  const before = button.dataset.label ??= button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Not allowed';
  }
  setTimeout(() => { button.textContent = before; }, 1_500);
}
find('share').addEventListener('click', (event) => copy(event.target, location.href));
find('codes').addEventListener('click', (event) => {
  const name = event.target.dataset.copy;
  if (name) copy(event.target, event.target.closest('article').querySelector(`.${name}`).textContent);
});

const theme = find('theme');
theme.value = document.documentElement.dataset.theme;
theme.addEventListener('change', () => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem('theme', theme.value);
});

new ResizeObserver(redraw).observe(find('results'));
fill(location.search || FIRST);
form.elements.outage.checked = false;
// The server keeps the switch, which is off when the page opens. An address is sent as it is, so that the server reports
// what is wrong with it.
setState('running');
setOutage(false).finally(() => start(location.search.slice(1) || query()));
