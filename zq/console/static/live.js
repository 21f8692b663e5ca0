// SPDX-License-Identifier: Apache-2.0
// Polling: each request begins after the last one has ended, a hidden tab asks nothing, failures are asked about less.

import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "./api.js";
import { listen, settings, tell } from "./session.js";

// Seconds between two requests at most, whatever failed: all is to be fresh 30 s after a server is back.
const LONGEST = 15;
// Seconds after which a page that has asked for nothing asks whether the store answers.
const QUIET = 2.5;

/** What is wrong with the server as a whole; `fault` null = nothing. `since`: milliseconds. */
export const trouble = { fault: null, since: 0 };

const SKIPPED = Symbol("skipped");
const polls = new Set();
let ticked = 0;
let asked = Date.now();
document.addEventListener("visibilitychange", () => polls.forEach((poll) => poll.wake()));
listen(() => polls.forEach((poll) => poll.wake()));

/** The trouble is that of any poll: another one may have asked for what needs no store. */
function noticed() {
  const passing = [...polls].map((poll) => poll.fault).find((fault) => fault?.passing) ?? null;
  if (passing === null && trouble.fault === null) return;
  const since = trouble.fault ? trouble.since : Date.now();
  const changed = (passing === null) !== (trouble.fault === null) || passing?.title !== trouble.fault?.title;
  Object.assign(trouble, { fault: passing, since });
  if (changed) tell();
}

/** One thing that is asked for again and again, until `end`. */
class Poll {
  constructor(load, seconds, told) {
    Object.assign(this, { load, seconds, told, failures: 0, fault: null, busy: false, ended: false, timer: 0, due: 0 });
    polls.add(this);
    this.run();
  }

  async run() {
    if (this.busy || this.ended) return;
    clearTimeout(this.timer);
    this.busy = true;
    let wait = this.seconds;
    try {
      const value = await this.load(this);
      if (value !== SKIPPED) this.succeeded(value);
    } catch (fault) {
      wait = this.failed(fault);
    }
    this.busy = false;
    this.due = Date.now() + wait * 1000;
    this.wake();
  }

  succeeded(value) {
    const others = this.fault?.passing ? [...polls].filter((poll) => poll !== this && poll.fault?.passing) : [];
    asked = Date.now();
    Object.assign(this, { failures: 0, fault: null });
    noticed();
    if (!this.ended) this.told({ value, fault: null, at: asked });
    for (const poll of others) poll.run();
  }

  failed(fault) {
    if (fault.status === undefined) throw fault;
    asked = Date.now();
    Object.assign(this, { failures: this.failures + 1, fault });
    noticed();
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
 * @param {(poll: {fault: any}) => Promise<any>} load is told how it ended last
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

/**
 * Notice within seconds that the store or the server is away, on a page that asks for nothing, or seldom, too.
 * What has failed is asked for again whatever others ask: only its own success ends its fault.
 */
export function useHeartbeat() {
  useLive((poll) => (poll.fault || Date.now() - asked > QUIET * 800 ? call("GET", "ping") : SKIPPED), QUIET, []);
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
