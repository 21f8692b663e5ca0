// SPDX-License-Identifier: Apache-2.0
// Polling: each request begins after the last one has ended, a hidden tab asks nothing, failures are asked about less.

import { useEffect, useRef, useState } from "preact/hooks";
import { listen, settings, tell } from "./session.js";

const LONGEST = 30;

/** What is wrong with the server as a whole; `fault` null = nothing. `since`: milliseconds. */
export const trouble = { fault: null, since: 0 };

const polls = new Set();
let ticked = 0;
document.addEventListener("visibilitychange", () => polls.forEach((poll) => poll.wake()));
listen(() => polls.forEach((poll) => poll.wake()));

function noticed(fault) {
  const passing = fault?.passing ? fault : null;
  if (passing === null && trouble.fault === null) return;
  const since = trouble.fault ? trouble.since : Date.now();
  const changed = (passing === null) !== (trouble.fault === null) || passing?.title !== trouble.fault?.title;
  Object.assign(trouble, { fault: passing, since });
  if (changed) tell();
}

/** One thing that is asked for again and again, until `end`. */
class Poll {
  constructor(load, seconds, told) {
    Object.assign(this, { load, seconds, told, failures: 0, busy: false, ended: false, timer: 0, due: 0 });
    polls.add(this);
    this.run();
  }

  async run() {
    if (this.busy || this.ended) return;
    clearTimeout(this.timer);
    this.busy = true;
    let wait = this.seconds;
    try {
      const value = await this.load();
      this.failures = 0;
      noticed(null);
      if (!this.ended) this.told({ value, fault: null, at: Date.now() });
    } catch (fault) {
      wait = this.failed(fault);
    }
    this.busy = false;
    this.due = Date.now() + wait * 1000;
    this.wake();
  }

  failed(fault) {
    if (fault.status === undefined) throw fault;
    this.failures += 1;
    noticed(fault);
    if (!this.ended) this.told({ fault });
    return Math.max(fault.retry, Math.min(LONGEST, this.seconds * 2 ** this.failures));
  }

  wake() {
    clearTimeout(this.timer);
    if (this.ended || this.busy || document.hidden || !settings.live) return;
    this.timer = setTimeout(() => this.run(), Math.max(0, this.due - Date.now()));
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    polls.delete(this);
  }
}

/** Ask for everything of this page again, now. */
export function refresh() {
  polls.forEach((poll) => poll.run());
}

/**
 * What `load` returns, now and every so many seconds. `value` stays when a request fails; `fault` says why.
 * @param {() => Promise<any>} load
 * @param {number} seconds
 * @param {unknown[]} inputs what `load` depends on
 * @returns {{value: any, fault: any, at: number, again: () => void}}
 */
export function useLive(load, seconds, inputs) {
  const [found, setFound] = useState({ value: undefined, fault: null, at: 0 });
  const poll = useRef(null);
  useEffect(() => {
    setFound({ value: undefined, fault: null, at: 0 });
    poll.current = new Poll(load, seconds, (news) => setFound((known) => ({ ...known, ...news })));
    return () => poll.current.end();
  }, inputs);
  if (poll.current) poll.current.seconds = seconds;
  return { ...found, again: () => poll.current?.run() };
}

/** Draw again whenever what is in `session` or `trouble` changes. */
export function useChanges() {
  const [, draw] = useState(0);
  useEffect(() => listen(() => draw((ticked += 1))), []);
}

/**
 * The present moment, again each second.
 * @returns {number} milliseconds
 */
export function useClock() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
