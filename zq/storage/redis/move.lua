#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Moves ready messages. KEYS: project, queue, history if there is one, targets.
-- ARGV: now, queue's full name, seconds of history, number of targets; targets and ways as moving.lua reads them.
-- Returns for each target when what came to it expires first, then the ids of what moved as msgpack.

local q, now, full, h, count = queue_at(4), number(), argument(), history(number()), number()
local targets = read_targets(count)
local ways, ids = read_ways(targets)
local moved, gone, found = {}, {}, locate(q, ids, now)
local taken = pinned(q, found)
for _, m in ipairs(found) do
  if not taken[m.member] and m.ends <= now and m.available <= now then
    local id = id_of(m.record)
    ways[id].m = m
    moved[#moved + 1], gone[#gone + 1] = ways[id], id
  end
end
if #moved > 0 then move(q, h, full, moved, now) end
return earliest(targets) .. cmsgpack.pack(gone)
