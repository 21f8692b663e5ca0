// SPDX-License-Identifier: Apache-2.0
// Buttons that change something, and notices of the outcome. Buttons are hidden on a read-only console, and have no effect
// if the caller may not use them.

import { useLayoutEffect, useState } from "preact/hooks";
import { may, readOnly, session } from "../session.js";
import { html } from "./html.js";

// Milliseconds for which a notice of success is shown, and during which a change of the page does not remove it: an act
// often ends on another page.
const SHOWN = 6000;
const KEPT = 1000;
const NOTHING = { text: "", error: false, at: 0 };

let announcer = () => {};

/** The notice of the latest outcome, in a live region. A success disappears by itself; an error stays until it is closed. */
export function Announcer() {
  const [said, setSaid] = useState(NOTHING);
  announcer = (text, error = false) => setSaid({ text, error, at: Date.now() });
  const close = () => setSaid(NOTHING);
  // Not `useEffect`, which runs after a delay: the timer of the notice before could end first, and remove this notice.
  useLayoutEffect(() => {
    if (!said.text || said.error) return;
    const left = () => Date.now() - said.at > KEPT && close();
    const timer = setTimeout(close, SHOWN);
    addEventListener("hashchange", left);
    return () => {
      clearTimeout(timer);
      removeEventListener("hashchange", left);
    };
  }, [said]);
  return html`<div class="announcer" aria-live="polite">
    ${said.text &&
    html`<div class=${said.error ? "said wrong" : "said"}>
      <span>${said.text}</span><button type="button" class="plain" aria-label="Close this notice" onClick=${close}>×</button>
    </div>`}
  </div>`;
}

/**
 * Show a notice of the outcome of an act.
 * @param {string} text
 * @param {boolean} [error]
 */
export function announce(text, error = false) {
  announcer(text, error);
}

/** A button. `rule`: what the caller must be allowed; `when`: whether it makes sense now, else `why` says why not. */
export function Act({ rule, when = true, why = "", onClick, kind = "", children, submit = false, ...more }) {
  if (readOnly) return null;
  const allowed = may(rule);
  const reason = allowed ? (when ? "" : why) : `Your credential does not allow ${rule} in ${session.me?.project}.`;
  const usable = allowed && when;
  const act = (event) => {
    if (usable) return onClick?.(event);
    event.preventDefault();
    announce(reason, true);
  };
  return html`<button
    type=${submit ? "submit" : "button"}
    class=${kind}
    aria-disabled=${usable ? undefined : "true"}
    title=${reason || undefined}
    onClick=${act}
    ...${more}
  >
    ${children}
  </button>`;
}
