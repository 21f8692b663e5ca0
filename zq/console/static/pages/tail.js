// SPDX-License-Identifier: Apache-2.0
// The tail of one topic or of several: lines as they come, and which way they come.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useChanges, useClock } from "../live.js";
import { html } from "../parts/html.js";
import { Fault } from "../parts/states.js";
import { useTyped } from "../route.js";
import { MOST, Tail } from "../tail.js";
import { clock, count, rate, several, visible } from "../text.js";
import { Published } from "./log.js";

// Milliseconds between two drawings, however much comes.
const DRAWN = 100;
// Seconds over which the rate is taken.
const LATELY = 5;
// Characters of a body that a line shows.
const START = 300;
// Pixels of a line, as the style sheet has it.
const HEIGHT = 26;
// Lines beyond either edge that are drawn, too.
const MORE = 10;
// Lines that fit, before the list is measured.
const FIT = 30;
const NO_STREAM = "The server has no free stream; the console retries every 30 seconds.";
const SAYS = {
  stream: "Live.",
  waiting: `Live (long polling). ${NO_STREAM}`,
  polling: `Refreshed every two seconds. ${NO_STREAM}`,
  connecting: "Connecting…",
};

/**
 * `match`: a topic or a pattern of topics; `topic`: the one that is meant, "" if there may be several. `query`: that of the
 * address: `text` = the filter, `m` = the message that is looked at; `href`: the address with another query.
 */
export function Following({ match, topic, query, href }) {
  useChanges();
  const tail = useTail(match, topic, query.text ?? "");
  const [held, hold] = useState(null);
  if (!tail) return null;
  const away = (is) => {
    if (is !== (held !== null)) hold(is ? { lines: tail.shown(), came: tail.came } : null);
  };
  const lines = held?.lines ?? tail.shown();
  const of = topic || query.topic;
  const open = query.m && of && html`<${Published} key=${query.m} topic=${of} id=${query.m} back=${href({ ...query, m: "", topic: "" })} />`;
  const link = (line) => href({ ...query, m: line.sequence, topic: topic ? "" : line.topic });
  const draw = (line) => html`<${Line} line=${line} topic=${topic} href=${link(line)} />`;
  return html`<${Tools} tail=${tail} href=${(text) => href({ ...query, text })} again=${() => hold(null)} />
    <p class="row quiet">
      <${Way} tail=${tail} /> <${Sums} tail=${tail} lines=${lines} />
      ${held && tail.came > held.came && html`<${ToTheEnd} news=${tail.came - held.came} end=${() => hold(null)} />`}
    </p>
    ${tail.mode === "ended" && html`<${Fault} fault=${tail.fault} />`}
    <div class=${open ? "split open" : "split"}>
      <div class="list"><${Window} label="Live messages" lines=${lines} draw=${draw} away=${held !== null} left=${away} /></div>
      ${open}
    </div>`;
}

function ToTheEnd({ news, end }) {
  const act = () => {
    document.querySelector(".lines").focus();
    end();
  };
  return html`<button type="button" onClick=${act}>${count(news)} new: show</button>`;
}

function useTail(match, topic, filter) {
  const [tail, set] = useState(null);
  const [, draw] = useState(0);
  useEffect(() => {
    let timer = 0;
    const drawn = () => {
      timer = 0;
      draw((turn) => turn + 1);
    };
    const made = new Tail({ match, topic, filter }, () => (timer ||= setTimeout(drawn, DRAWN)));
    set(made);
    return () => {
      clearTimeout(timer);
      made.end();
    };
  }, [match, topic]);
  return tail;
}

function Tools({ tail, href, again }) {
  const typed = useTyped(href);
  const filter = ({ target: { value } }) => {
    tail.filter = value;
    again();
    tail.told();
    typed(value);
  };
  const clear = () => {
    again();
    tail.clear();
  };
  return html`<div class="row tools">
    <button type="button" aria-pressed=${tail.paused} onClick=${() => tail.pause(!tail.paused)}>${tail.paused ? "Resume" : "Pause"}</button>
    <label class="search">
      <span class="hidden">Message contains</span>
      <input type="search" data-search placeholder="Message contains  ( / )" autocomplete="off" spellcheck=${false} value=${tail.filter} onInput=${filter} />
    </label>
    <button type="button" onClick=${clear}>Clear</button>
  </div>`;
}

/** Which way messages come, or why none do. */
function Way({ tail }) {
  const { mode, fault, position } = tail;
  const told = {
    paused: `Paused${position && ` after sequence ${position}`}.`,
    connecting: fault && `${visible(fault.title)}: ${visible(fault.description)} Retrying.`,
    ended: "The stream has ended.",
  }[mode];
  return html`<span class="way">${told || SAYS[mode]}</span>`;
}

function Sums({ tail, lines }) {
  const lately = useRate(tail);
  return html`<span>${several(tail.came, "message")} received, ${rate(lately)} per second. ${several(lines.length, "message")} shown (at most ${count(MOST)}).</span>`;
}

function useRate(tail) {
  const now = useClock();
  const seen = useRef([]);
  const last = seen.current.at(-1);
  if (!last || now - last.at >= 1000) seen.current = [...seen.current, { at: now, came: tail.came }].slice(-LATELY - 1);
  const first = seen.current[0];
  return now > first.at ? ((tail.came - first.came) * 1000) / (now - first.at) : 0;
}

function Line({ line, topic, href }) {
  if (line.gap) return html`<span class="gap">${line.gap}</span>`;
  const shown = visible(line.text.slice(0, START));
  return html`<a class="id" href=${href}>${line.sequence}</a>
    <span class="when">${clock(line.at)}</span>
    ${!topic && html`<span class="of">${visible(line.topic)}</span>`}
    <code>${shown}${line.size > START && "…"}</code>`;
}

/**
 * The list. It stays at its end until it is scrolled away from there, or a link in it gets the focus.
 * @param {{label: string, lines: {key: unknown}[], draw: (line: any) => unknown, left: (away: boolean) => void,
 *   away: boolean}} given `away`: it is to stay where it is; `left`: told when it is to, and when no more
 */
function Window({ label, lines, draw, away, left }) {
  const element = useRef(null);
  const [first, setFirst] = useState(0);
  const fit = Math.ceil((element.current?.clientHeight ?? FIT * HEIGHT) / HEIGHT);
  const top = away ? Math.min(first, lines.length - fit) : lines.length - fit;
  const from = Math.max(0, top - MORE);
  const to = Math.min(lines.length, from + fit + 2 * MORE);
  useLayoutEffect(() => {
    if (!away) element.current.scrollTop = element.current.scrollHeight;
  });
  const moved = ({ currentTarget: list }) => {
    setFirst(Math.floor(list.scrollTop / HEIGHT));
    left(list.scrollHeight - list.scrollTop - list.clientHeight > HEIGHT || list.querySelector("a:focus") !== null);
  };
  return html`<div class="lines" role="group" aria-label=${label} tabindex="0" ref=${element} onScroll=${moved} onFocusIn=${moved}>
    <div ref=${tall(from)}></div>
    <ol>${lines.slice(from, to).map((line, at) => html`<${Item} key=${line.key} of=${lines.length} at=${from + at + 1}>${draw(line)}</${Item}>`)}</ol>
    <div ref=${tall(lines.length - to)}></div>
  </div>`;
}

function Item({ of, at, children }) {
  return html`<li class="line" data-row aria-setsize=${of} aria-posinset=${at}>${children}</li>`;
}

/** Makes an element as high as so many lines. */
function tall(lines) {
  return (element) => {
    if (element) element.style.height = `${lines * HEIGHT}px`;
  };
}
