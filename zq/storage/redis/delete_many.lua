#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes messages by id. KEYS: project, queue, history if there is one.
-- ARGV: now, seconds of history, number of claims or -1, claims, ids.
-- With claims each message must be held by one of them, else none goes: "unheld". Returns "" otherwise.

local q, now, h, count = queue_at(4), number(), history(number()), number()
local claims, ids = {}, {}
for _ = 1, count do claims[argument()] = true end
for at = argument_at + 1, #ARGV do ids[#ids + 1] = ARGV[at] end
local found = locate(q, ids, now)
if count >= 0 then
  local taken = pinned(q, found)
  for _, m in ipairs(found) do
    if m.claim == '' or m.ends <= now or not claims[m.claim] or taken[m.member] then return { 'unheld' } end
  end
end
finish(q, h, found, now, DELETED)
return ''
