// Draws what scene.py says as SVG beside the controls, and asks for another scene when a control moves: the kernel where
// one answers, else the stored scenes; then the controls offer no more than those. No build step, no network.

/** @typedef {{kind: string, points?: (number | null)[], colour?: string, opacity?: number, width?: number,
 *   dash?: string, name?: string, radius?: number, ring?: boolean, path?: string, edge?: string | null, at?: number[],
 *   text?: string, anchor?: string, baseline?: string, size?: number, bold?: boolean, mono?: boolean,
 *   free?: boolean}} Mark */
/** @typedef {{name: string, log: boolean, limits: [number, number], ticks: [number, string][], grid: boolean}} Axis */
/** @typedef {{box: [number, number, number, number], title: string, legend: [string, string][], x: Axis | null,
 *   y: Axis | null, marks: Mark[]}} Panel */
/** @typedef {{name: string, at: [number, number], colour: string}} Handle */
/** @typedef {{scene: {size: [number, number], panels: Panel[]}, words: string, hidden?: string[], handles?: Handle[],
 *   copies?: Record<string, string>}} View */
/** @typedef {{name: string, label: string, kind: "slider" | "buttons" | "list" | "switch" | "number", texts: string[],
 *   at: number, stored: number[]}} Control */
/** @typedef {SVGSVGElement & {room?: number[], held?: string}} Picture its extent, and the handle that is dragged */
/** @typedef {{key: string, controls: Control[], view: View, stored: string}} Told */

const SVG = "http://www.w3.org/2000/svg"
const IN_FLIGHT = 3 // questions that the kernel is asked at once: while it computes one, the browser draws another
const PATIENCE = 2000 // milliseconds for which a kernel may be busy before the stored scenes answer
const LINKED = "course-linked"
const LETTERS = 13, MOST_ENLARGED = 1.4 // pixels of an axis's words; they grow where a narrow page shrinks the picture
const MARGIN = 8 // pixels around all that is drawn
const LOOK = `
.course-explorer { display: flex; flex-flow: row wrap; gap: 0 1.5em; font-size: 14px; line-height: 1.4; color: inherit }
.course-explorer form { flex: 0 1 19em; min-width: 15em; margin: 0; display: flex; flex-direction: column; gap: .5em }
.course-explorer .result { flex: 1 1 30em; min-width: 0 }
.course-explorer legend { font-size: inherit; margin: 0 }
.course-explorer label, .course-explorer legend { display: flex; gap: .5em; justify-content: space-between; padding: 0 }
.course-explorer fieldset { border: 0; margin: 0; padding: 0; min-width: 0; display: flex; flex-flow: row wrap; gap: 0 1em }
.course-explorer fieldset label { justify-content: flex-start; gap: .3em }
.course-explorer input[type=range], .course-explorer select { width: 100%; margin: 0; accent-color: #0072B2; font: inherit }
.course-explorer button { font: inherit; align-self: flex-start }
.course-explorer pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; margin: .5em 0 0; font-size: 13px; color: inherit;
  background: none; border: 0; padding: 0 }
.course-explorer svg { display: block; max-width: 100%; max-height: 60vh; height: auto; overflow: visible; font-family: sans-serif;
  user-select: none }
.course-explorer .names { display: flex; flex-flow: row wrap; gap: 0 1.2em }
.course-explorer .names i { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
.course-explorer .handle { cursor: grab; touch-action: none }
.course-explorer input[type=number] { width: 9em; font: inherit }
.course-explorer .hint { opacity: .8; font-size: 12px }
`

/** The value at a pixel of an axis that reaches from `start` over `length` pixels.
 * @param {Axis} axis @param {number} pixel @param {number} start @param {number} length @returns {number} */
export function valueAt(axis, pixel, start, length) {
  const part = (pixel - start) / length
  const [low, high] = axis.log ? axis.limits.map(Math.log) : axis.limits
  const value = low + part * (high - low)
  return axis.log ? Math.exp(value) : value
}

/** The stored place that is nearest to another.
 * @param {number[]} stored @param {number} wanted @returns {number} */
export function nearest(stored, wanted) {
  return stored.reduce((best, place) => (Math.abs(place - wanted) < Math.abs(best - wanted) ? place : best))
}

/** Where the stored view of these places stands in the list of all of them, the last control's places turning first.
 * @param {Control[]} controls @param {number[]} places @returns {number} */
export function storedNumber(controls, places) {
  return controls.reduce((number, { stored }, one) => number * stored.length + stored.indexOf(places[one]), 0)
}

/** The height of a line at a pixel from the left, undefined where it does not reach.
 * @param {(number | null)[]} points @param {number} x @returns {number | undefined} */
export function heightAt(points, x) {
  for (let n = 0; n + 3 < points.length; n += 2) {
    const [left, from, right, to] = points.slice(n, n + 4)
    if (left === null || right === null || from === null || to === null || left > right) continue
    if (left <= x && x <= right) return left === right ? to : from + ((to - from) * (x - left)) / (right - left)
  }
}

/** The pixel of a value on an axis, see `valueAt`.
 * @param {Axis} axis @param {number} value @param {number} start @param {number} length @returns {number} */
export function pixelOf(axis, value, start, length) {
  const [low, high, at] = [...axis.limits, value].map(each => (axis.log ? Math.log(each) : each))
  return start + ((at - low) / (high - low)) * length
}

/** @param {number} value @returns {string} three significant digits */
export const short = value => {
  const size = Math.abs(value)
  if (size >= 1000 && size < 1e7) return Math.round(value).toLocaleString("en")
  return size && (size < 0.001 || size >= 1e7) ? value.toExponential(2) : String(Number(value.toPrecision(3)))
}

/** @param {string} colour @returns {string} `ink` is the page's own colour of text */
const paint = colour => (colour === "ink" ? "currentColor" : colour)
/** Words in a colour that can be read on a light and on a dark ground. @param {string} colour */
const wordColour = colour => (colour === "ink" ? "currentColor" : `color-mix(in srgb, ${colour} 60%, currentColor)`)

/** @param {Element} parent @param {string} name @param {Record<string, unknown>} given @param {string} [text] */
function add(parent, name, given, text) {
  const drawn = parent.namespaceURI === SVG || name === "svg"
  const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name)
  for (const [key, value] of Object.entries(given)) if (value !== undefined && value !== "") element.setAttribute(key, String(value))
  if (text !== undefined) element.textContent = text
  return parent.appendChild(element)
}

/** @param {(number | null)[]} points */
function pathOf(points) {
  let path = "", pen = "M"
  for (let n = 0; n < points.length; n += 2) {
    if (points[n] === null || points[n + 1] === null) pen = "M"
    else { path += `${pen}${points[n]} ${points[n + 1]}`; pen = "L" }
  }
  return path
}

/** @param {Element} within what is cut off at the axes @param {Element} above and what is not @param {Mark} mark */
function drawMark(within, above, mark) {
  const group = mark.free || mark.kind === "text" ? above : within
  const { kind, points = [], opacity } = mark, colour = paint(mark.colour ?? "ink")
  if (kind === "line")
    add(group, "path", { d: pathOf(points), fill: "none", stroke: colour, opacity, "stroke-width": mark.width,
      "stroke-dasharray": mark.dash, "stroke-linejoin": "round" })
  else if (kind === "dots")
    for (let n = 0; n < points.length; n += 2) {
      if (points[n] === null || points[n + 1] === null) continue
      const look = mark.ring ? { fill: "none", stroke: colour } : { fill: colour }
      add(group, "circle", { cx: points[n], cy: points[n + 1], r: mark.radius, opacity, ...look })
    }
  else if (kind === "fill")
    add(group, "path", { d: mark.path, fill: colour, [colour === "none" ? "opacity" : "fill-opacity"]: opacity,
      stroke: mark.edge ? paint(mark.edge) : "none", "stroke-dasharray": mark.dash })
  else {
    const lines = (mark.text ?? "").split("\n"), [x, y] = mark.at ?? [0, 0]
    const middle = mark.baseline === "central" ? ((lines.length - 1) * (mark.size ?? 12) * 1.2) / 2 : 0
    lines.forEach((line, n) => {
      const text = add(group, "text", { x, y: y - middle + n * (mark.size ?? 12) * 1.2, "text-anchor": mark.anchor,
        "dominant-baseline": mark.baseline, "font-size": mark.size, "font-weight": mark.bold ? "bold" : "",
        "font-family": mark.mono ? "monospace" : "", "xml:space": "preserve" }, line)
      text.setAttribute("style", `white-space: pre; fill: ${wordColour(mark.colour ?? "ink")}`)
    })
  }
}

/** @param {Element} group @param {Panel} panel @param {number} size of the letters */
function drawAxes(group, { box: [left, top, width, height], title, x, y }, size) {
  const line = { stroke: "currentColor" }, words = { fill: "currentColor", "font-size": size }
  const [right, bottom] = [left + width, top + height]
  for (const [axis, down] of /** @type {[Axis | null, boolean][]} */ ([[x, true], [y, false]])) {
    if (!axis) continue
    for (const [place, text] of axis.ticks) {
      const [x1, y1, x2, y2] = down ? [place, top, place, bottom] : [left, place, right, place]
      if (axis.grid) add(group, "line", { ...line, x1, y1, x2, y2, opacity: 0.15 })
      const at = down ? { x: place, y: bottom + 4 + size, "text-anchor": "middle" }
        : { x: left - 7, y: place, "text-anchor": "end", "dominant-baseline": "central" }
      add(group, "text", { ...words, ...at }, text)
    }
    add(group, "line", { ...line, x1: left, y1: bottom, x2: down ? right : left, y2: down ? bottom : top, opacity: 0.6 })
    const widest = Math.max(0, ...axis.ticks.map(([, text]) => text.length))
    const at = down ? { x: left + width / 2, y: bottom + 8 + 2.3 * size }
      : { transform: `translate(${left - 7 - size - 0.58 * size * widest} ${top + height / 2}) rotate(-90)` }
    if (axis.name) add(group, "text", { ...words, ...at, "text-anchor": "middle" }, axis.name)
  }
  if (title) add(group, "text", { ...words, "font-size": size + 1, x: left + width / 2, y: top - 9, "text-anchor": "middle" }, title)
}

/** What the lines of a panel are at the pointer, and a line through it. @param {Element} over @param {Panel} panel @param {number} at */
function readOut(over, { box: [left, top, width, height], x, y, marks }, at) {
  if (!x || !y) return
  const lines = marks.filter(({ kind, points = [] }) => kind === "line" && points.length > 4)
  const read = lines.map(mark => ({ mark, pixel: heightAt(mark.points ?? [], at) }))
  const there = read.filter(({ pixel }) => pixel !== undefined && pixel >= top - 1 && pixel <= top + height + 1)
  if (!there.length) return
  add(over, "line", { x1: at, y1: top, x2: at, y2: top + height, stroke: "currentColor", opacity: 0.5, "stroke-dasharray": "2 3" })
  const texts = there.map(({ mark, pixel }) => {
    add(over, "circle", { cx: at, cy: pixel, r: 4, fill: paint(mark.colour ?? "ink") })
    return `${mark.name ? `${mark.name} ` : ""}${short(valueAt(y, pixel ?? 0, top + height, -height))}`
  })
  const end = at > left + width / 2 ? "end" : "start"
  ;[short(valueAt(x, at, left, width)), ...texts].forEach((text, n) => {
    const colour = n ? wordColour(there[n - 1].mark.colour ?? "ink") : "currentColor"
    const place = { x: at + (end === "end" ? -9 : 9), y: top + 13 + 16 * n, "text-anchor": end, "font-size": 13, "font-weight": "bold" }
    const shown = add(over, "text", { ...place, "paint-order": "stroke", "stroke-width": 4, "stroke-linejoin": "round" }, text)
    shown.setAttribute("style", `fill: ${colour}; stroke: var(--jp-layout-color0, var(--pst-color-background, Canvas))`)
  })
}

/** Draws a view into the SVG, which grows where something new has no room, and else keeps its size.
 * @param {Picture} svg @param {View} view
 * @param {(handle: string, x: number, y: number) => void} dragged is told where a handle goes */
function draw(svg, { scene, words, handles = [] }, dragged) {
  const name = (svg.id ||= `drawn-${Math.random().toString(36).slice(2)}`)
  svg.replaceChildren()
  const [below, all] = [add(svg, "g", {}), add(svg, "g", {})]
  const shrunk = scene.size[0] / (svg.parentElement?.clientWidth || scene.size[0])
  const size = Math.round(LETTERS * Math.min(MOST_ENLARGED, Math.max(1, shrunk)))
  scene.panels.forEach((panel, number) => {
    const [x, y, width, height] = panel.box, clip = add(svg, "clipPath", { id: `${name}-${number}` })
    const box = { x: x - 1, y: y - 1, width: width + 2, height: height + 2 }
    add(clip, "rect", box)
    add(all, "rect", { ...box, fill: "none" })
    drawAxes(all, panel, size)
    const within = add(below, "g", { "clip-path": panel.x ? `url(#${name}-${number})` : "" })
    panel.marks.forEach(mark => drawMark(within, all, mark))
  })
  const over = add(svg, "g", { "pointer-events": "none" })
  const drawn = /** @type {SVGGElement} */ (all).getBBox()
  const [left, top, right, bottom] = svg.room ?? [Infinity, Infinity, -Infinity, -Infinity]
  svg.room = [Math.min(left, drawn.x - MARGIN), Math.min(top, drawn.y - MARGIN),
    Math.max(right, drawn.x + drawn.width + MARGIN), Math.max(bottom, drawn.y + drawn.height + MARGIN)]
  const [x, y, width, height] = [svg.room[0], svg.room[1], svg.room[2] - svg.room[0], svg.room[3] - svg.room[1]]
  for (const [key, value] of Object.entries({ viewBox: `${x} ${y} ${width} ${height}`, width, height })) svg.setAttribute(key, String(value))
  svg.setAttribute("aria-label", words.split("\n")[0])
  const held = scene.panels[0]
  /** @type {Element | undefined} */
  let taken
  for (const { name: handle, at, colour } of handles) {
    if (!held?.x || !held.y) continue
    const [left, top, wide, high] = held.box
    const [cx, cy] = [pixelOf(held.x, at[0], left, wide), pixelOf(held.y, at[1], top + high, -high)]
    if (!Number.isFinite(cx + cy)) continue
    const circle = add(all, "circle", { cx, cy, r: 7, fill: colour, "fill-opacity": 0.25, stroke: colour, "stroke-width": 2, class: "handle" })
    add(circle, "title", {}, `drag ${handle}`)
    circle.onpointerdown = () => { svg.held = handle; taken = circle }
    if (svg.held === handle) taken = circle
  }
  svg.onpointerup = svg.onpointercancel = () => { svg.held = undefined }
  svg.onpointerleave = () => over.replaceChildren()
  svg.onpointermove = event => {
    const frame = svg.getBoundingClientRect(), zoom = width / frame.width
    const [atX, atY] = [x + (event.clientX - frame.x) * zoom, y + (event.clientY - frame.y) * zoom]
    over.replaceChildren()
    if (svg.held && held?.x && held.y) {
      svg.setPointerCapture(event.pointerId)
      taken?.setAttribute("cx", String(atX)) // at once: the curve follows when the kernel has answered
      taken?.setAttribute("cy", String(atY))
      const [left, top, wide, high] = held.box
      return dragged(svg.held, valueAt(held.x, atX, left, wide), valueAt(held.y, atY, top + high, -high))
    }
    const panel = scene.panels.find(({ box: [l, t, w, h] }) => l <= atX && atX <= l + w && t <= atY && atY <= t + h)
    if (panel) readOut(over, panel, atX)
  }
}

/** @param {string} packed base64 of deflated JSON @returns {Promise<View[]>} */
export async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0))
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json()
}

/** The element of a control; `moved` is called with the place that it is moved to.
 * @param {Element} form @param {Control} control @param {(place: number) => void} moved
 * @returns {(place: number, among: number[] | null) => void} shows a place, among those that it can be moved to */
function addControl(form, { label, kind, texts }, moved) {
  const all = texts.map((_, place) => place)
  if (kind === "buttons") {
    const group = add(form, "fieldset", {}), id = Math.random().toString(36)
    add(group, "legend", {}, label)
    const inputs = texts.map((text, place) => {
      const within = add(group, "label", {}), input = /** @type {HTMLInputElement} */ (add(within, "input", { type: "radio", name: id }))
      within.append(text)
      input.onchange = () => moved(place)
      return input
    })
    return (place, among) => inputs.forEach((input, one) => {
      input.checked = one === place
      input.disabled = !(among ?? all).includes(one)
    })
  }
  const within = add(form, "label", {}, kind === "switch" ? "" : label)
  if (kind === "list") {
    const input = /** @type {HTMLSelectElement} */ (add(form, "select", { "aria-label": label }))
    const options = texts.map((text, place) => /** @type {HTMLOptionElement} */ (add(input, "option", { value: place }, text)))
    input.onchange = () => moved(Number(input.value))
    return (place, among) => {
      input.value = String(place)
      options.forEach((option, one) => { option.disabled = !(among ?? all).includes(one) })
    }
  }
  const type = { switch: "checkbox", number: "number", slider: "range" }[kind]
  const shown = kind === "slider" ? add(within, "output", {}) : undefined
  const input = /** @type {HTMLInputElement} */ (add(kind === "slider" ? form : within, "input", { type, step: kind === "number" ? "any" : 1, min: 0, "aria-label": label }))
  if (kind === "switch") {
    within.append(label)
    within.setAttribute("style", "justify-content: flex-start")
    input.onchange = () => moved(Number(input.checked))
    return place => { input.checked = place === 1 }
  }
  if (kind === "number") {
    input.onchange = () => moved(input.valueAsNumber || 0)
    input.onkeydown = event => {
      const up = { ArrowUp: 1, ArrowDown: -1 }[event.key]
      if (!up) return
      event.preventDefault() // the arrow keys change the first digit, or the second where the first is 1
      const value = input.valueAsNumber || 0, digit = 10 ** Math.floor(Math.log10((value || 2) / 2))
      moved(Math.max(0, Number((value + up * (Number.isInteger(value) ? Math.max(1, digit) : digit)).toPrecision(6))))
    }
    return (value, among) => { input.value = String(value); input.disabled = among !== null }
  }
  return (place, among) => {
    const places = among ?? all
    input.max = String(places.length - 1)
    input.value = String(places.indexOf(place))
    input.oninput = () => moved(places[Number(input.value)])
    input.setAttribute("aria-valuetext", texts[place])
    if (shown) shown.textContent = texts[place]
  }
}

/** Brings an explorer to life. @param {Element} root @param {Told} told */
export function mount(root, { key, controls, view, stored }) {
  root.replaceChildren()
  const form = /** @type {HTMLFormElement} */ (add(root, "form", {})), result = add(root, "div", { class: "result" })
  add(result, "style", {}, LOOK)
  form.onkeydown = event => event.stopPropagation() // JupyterLab would take the arrow keys for itself
  const svg = /** @type {Picture} */ (add(result, "svg", { role: "img" }))
  const names = add(result, "div", { class: "names" }), words = add(result, "pre", { "aria-live": "polite" })
  const copies = add(result, "div", { class: "names" })
  const first = controls.map(({ at }) => at)
  let places = [...first], turn = 0, newest = 0, flying = 0, again = false
  /** @type {[string, number, number] | undefined} */
  let dragged
  /** @type {Promise<View[]> | undefined} */
  let grid
  /** @param {View} shown */
  const show = shown => {
    draw(svg, shown, drag)
    words.textContent = shown.words
    controls.forEach(({ name }, number) => { parts[number].hidden = shown.hidden?.includes(name) ?? false })
    copies.replaceChildren()
    for (const [name, text] of Object.entries(shown.copies ?? {})) {
      const copy = /** @type {HTMLButtonElement} */ (add(copies, "button", { type: "button", "data-text": text }, `copy ${name}`))
      copy.onclick = () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "copied" })
    }
    names.replaceChildren()
    for (const [name, colour] of shown.scene.panels.flatMap(({ legend }) => legend))
      add(add(names, "span", {}, name), "i", { style: `background: ${paint(colour)}` })
    names.querySelectorAll("i").forEach(dot => dot.parentElement?.prepend(dot))
  }
  const parts = controls.map(() => /** @type {HTMLElement} */ (add(form, "div", {})))
  const shows = controls.map((control, number) => addControl(parts[number], control, place => move(number, place)))
  const hint = add(form, "span", { class: "hint" })
  /** Shows where the controls are, and how far they can be moved: with a kernel everywhere. */
  const settle = () => {
    const linked = links().has(key)
    hint.textContent = linked ? "" : "Without a kernel: the stored values. Run the cell for all of them."
    if (!linked) places = places.map((place, n) => (controls[n].kind === "number" ? first[n] : nearest(controls[n].stored, place)))
    shows.forEach((set, number) => set(places[number], linked ? null : controls[number].stored))
  }
  addEventListener(LINKED, settle)
  const reset = /** @type {HTMLButtonElement} */ (add(form, "button", { type: "button" }, "reset"))
  reset.onclick = () => { places = [...first]; settle(); ask() }
  /** @param {number} number @param {number} place */
  function move(number, place) {
    if (places[number] === place) return
    places[number] = place
    settle()
    ask()
  }
  /** @param {string} handle @param {number} x @param {number} y */
  function drag(handle, x, y) {
    dragged = [handle, x, y]
    ask()
  }
  async function fromStored() {
    dragged = undefined
    settle()
    const views = await (grid ??= unpacked(stored))
    show(views[storedNumber(controls, places.map((place, number) => (controls[number].kind === "number" ? 0 : place)))])
  }
  function ask() {
    const link = links().get(key)
    if (!link) return void fromStored()
    if (flying === IN_FLIGHT) return void (again = true) // a drag does not queue up
    again = false
    const now = ++turn, late = () => { flying = 0; links().delete(key); fromStored() }
    flying += 1
    const given = setTimeout(late, PATIENCE) // a kernel that is busy or gone; if it answers after all, it is taken back
    /** @param {{turn: number, places: number[]} & View} answer */
    const answered = answer => {
      if (answer.turn !== now) return
      clearTimeout(given)
      links().set(key, link)
      link.off("msg:custom", answered)
      flying = Math.max(0, flying - 1)
      if (now > newest) {
        newest = now
        if ((now === turn && !again) || svg.held) places = answer.places
        settle()
        show(answer)
      }
      if (again) ask()
    }
    link.on("msg:custom", answered)
    link.send({ turn: now, places, dragged })
    dragged = undefined
  }
  settle()
  show(view)
}

/** The models by their keys: a kernel makes them, an explorer's output finds them. */
const links = () => (/** @type {any} */ (globalThis).courseLinks ??= new Map())

export default {
  /** @param {{model: any}} made by anywidget, when the kernel makes its half */
  initialize({ model }) {
    links().set(model.get("key"), model)
    dispatchEvent(new Event(LINKED))
    return () => links().delete(model.get("key"))
  },
}
