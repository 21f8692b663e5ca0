#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes messages by id. KEYS: project, queue. ARGV: now, number of claims or -1, claims, ids.
-- With claims each message must be held by one of them, else none goes: "unheld". Returns "" otherwise.

local q, now, count = queue_at(4), tonumber(ARGV[1]), tonumber(ARGV[2])
local claims = {}
for at = 3, 2 + count do claims[ARGV[at]] = true end
local ids = {}
for at = 3 + math.max(count, 0), #ARGV do ids[#ids + 1] = ARGV[at] end
local found = locate(q, ids, now)
if count >= 0 then
  for _, m in ipairs(found) do
    if m.claim == '' or m.ends <= now or not claims[m.claim] then return 'unheld' end
  end
end
remove(q, found)
return ''
