// SPDX-License-Identifier: Apache-2.0
// Server-Sent Events, read by `fetch`: the browser's own EventSource cannot send the headers that the interface wants.

import { streamed } from "./api.js";

// Milliseconds after which a stream that says nothing has ended: a heartbeat comes every 15 s.
const SILENT = 40000;

/** Makes events of a stream's text, however it is cut. `last`: the id behind which to go on, "" = none is known. */
export class Parser {
  constructor(last = "") {
    Object.assign(this, { last, rest: "", id: last, event: "", data: [] });
  }

  /**
   * @param {string} text the next piece
   * @returns {{event: string, data: string, id: string}[]} what is complete with it
   */
  push(text) {
    const whole = this.rest + text;
    // A piece may end between the two characters of one line's end.
    const end = whole.endsWith("\r") ? whole.length - 1 : whole.length;
    const lines = whole.slice(0, end).split(/\r\n|\n|\r/);
    this.rest = lines.pop() + whole.slice(end);
    return lines.map((line) => this.line(line)).filter(Boolean);
  }

  line(line) {
    if (line === "") return this.dispatched();
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (name === "data") this.data.push(value);
    else if (name === "event") this.event = value;
    else if (name === "id" && !value.includes("\0")) this.id = value;
    return null;
  }

  /** An id without data is no event, but moves the place from which to go on. */
  dispatched() {
    const { id, event, data } = this;
    Object.assign(this, { last: id, event: "", data: [] });
    return data.length ? { event: event || "message", data: data.join("\n"), id } : null;
  }
}

/**
 * Read one stream until it ends, or `signal` is aborted. Throws Refused.
 * @param {string} path
 * @param {{query: object, last: string, signal: AbortSignal, told: (events: object[], last: string) => void}} more
 *   `told`: of each piece, the first of which comes at once
 */
export async function follow(path, { query, last, signal, told }) {
  const silence = new AbortController();
  const parser = new Parser(last);
  let timer = setTimeout(() => silence.abort(), SILENT);
  try {
    const reader = await streamed(path, { query, last, signal: AbortSignal.any([signal, silence.signal]) });
    for (;;) {
      const { value, done } = await reader.read().catch(() => ({ done: true })); // it broke
      if (done || signal.aborted) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENT);
      told(parser.push(value), parser.last);
    }
  } finally {
    clearTimeout(timer);
  }
}
