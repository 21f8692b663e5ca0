-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that give messages back.

-- Gives messages back: after their `delay` in seconds; where that is -1, after their redelivery delay, or to their
-- former places where they have none.
local function give_back(q, full, messages, now)
  if #messages == 0 then return end
  strike(q, messages)
  for _, m in ipairs(messages) do
    local wait = m.available - m.ends
    if m.delay >= 0 then
      m.available = now + m.delay * 1000
    else
      m.available = wait > 0 and now + wait or m.former
    end
    m.claim, m.ends = '', 0
  end
  rewrite(q, messages)
  ring(full)
end
