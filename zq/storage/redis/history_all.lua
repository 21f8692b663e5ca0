#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- Living messages and records above a sequence, in sequence. KEYS: project, queue, history.
-- ARGV: now, sequence, limit, bytes of bodies.
-- Returns the sequence to go on from (8 bytes; 0: nothing is left or the page is full), records with bodies.

local q, now, marker, limit, left, h = queue_at(4), number(), '(' .. argument(), number(), number(), history(1)
local most, entries = math.max(limit, 100), {}

local function gather(order, records, bodies, is_past)
  local found, members = redis.call('ZRANGE', order, marker, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES'), {}
  for at = 1, #found, 2 do members[#members + 1] = found[at] end
  for i, record in ipairs(pick(records, members)) do
    entries[#entries + 1] =
      { sequence = tonumber(found[2 * i]), member = members[i], record = record, bodies = bodies, is_past = is_past }
  end
end

local function is_shown(entry)
  if entry.is_past then return is_kept(entry.record, now) end
  local _, _, expires = struct.unpack('>I8I8I8', entry.record)
  return expires > now
end

gather(q.order, q.records, q.bodies, false)
gather(h.past, h.finished, h.remains, true)
table.sort(entries, function(one, other) return one.sequence < other.sequence end)
local pieces, shown, position, full = { '' }, 0, 0, false
for at = 1, math.min(#entries, most) do
  local entry = entries[at]
  position = entry.sequence
  if is_shown(entry) then
    local record = entry.is_past and entry.record or LIVING .. entry.record
    local body = redis.call('HGET', entry.bodies, entry.member)
    left = left - #body
    full = left < 0 and shown > 0
    if full then break end
    tell(pieces, record, body)
    shown = shown + 1
    full = shown == limit
    if full then break end
  end
end
if full or #entries < most then position = 0 end
pieces[1] = struct.pack('>I8', position)
return table.concat(pieces)
