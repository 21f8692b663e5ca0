// SPDX-License-Identifier: Apache-2.0
// A list that grows at its end, of lines of one height: only those in sight are in the document.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

// Pixels of a line, as the style sheet has it.
const HEIGHT = 26;
// Lines beyond either edge that are drawn, too.
const MORE = 10;
// Lines that fit, before the list is measured.
const FIT = 30;

/**
 * The list. It stays at its end until it is scrolled away from there, or a link in it gets the focus.
 * @param {{label: string, lines: {key: unknown}[], draw: (line: any) => unknown, left: (away: boolean) => void,
 *   away: boolean}} given `away`: it is to stay where it is; `left`: told when it is to, and when no more
 */
export function Window({ label, lines, draw, away, left }) {
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
    <ol>${lines.slice(from, to).map((line, at) => html`<${Line} key=${line.key} of=${lines.length} at=${from + at + 1}>${draw(line)}</${Line}>`)}</ol>
    <div ref=${tall(lines.length - to)}></div>
  </div>`;
}

function Line({ of, at, children }) {
  return html`<li class="line" data-row aria-setsize=${of} aria-posinset=${at}>${children}</li>`;
}

/** Makes an element as high as so many lines. */
function tall(lines) {
  return (element) => {
    if (element) element.style.height = `${lines * HEIGHT}px`;
  };
}
