#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- Messages above a marker that a view shows, in sequence.
-- KEYS: project, queue.
-- ARGV: now, marker, limit, bytes of bodies, client whose own are hidden or "", claimed shown, delayed shown ("1").
-- Returns the marker to go on from (8 bytes; 0: nothing is left or the page is full), records with bodies.

local q, now, marker, limit = queue_at(4), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, without, claimed, delayed = tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1', ARGV[7] == '1'

local function client_of(record)
  local id, client = struct.unpack('>I2I2', record, HEAD_SIZE + 13)
  local first = HEAD_SIZE + TAIL_SIZE + 1 + id
  return string.sub(record, first, first + client - 1)
end

local lists = {}

-- Whether a commit is going to delete a message whose claim would have ended: see shared.lua.
local function is_pinned(member, record)
  local length = struct.unpack('>I2', record, HEAD_SIZE - 1)
  if length == 0 then return false end
  local claim = string.sub(record, -length)
  lists[claim] = lists[claim] or on_list(q, claim)
  return not lists[claim][member]
end

local function shows(member, record)
  local _, available, expires, _, ends = struct.unpack('>I8I8I8I8I8', record)
  if expires <= now then return false end
  if ends > now then return claimed end
  local free = delayed or available <= now
  if free == claimed then return free end
  return is_pinned(member, record) == claimed
end

local shown, records = {}, {}

local function show(members)
  for i, record in ipairs(pick(q.records, members)) do
    if shows(members[i], record) and (without == '' or client_of(record) ~= without) and #shown < limit then
      shown[#shown + 1], records[#records + 1] = members[i], record
    end
  end
end

-- All ready messages above the marker, in sequence, if they are few; then there is no need to walk over the others.
local function few_ready()
  if claimed or delayed or redis.call('ZCOUNT', q.avail, '-inf', now) > STEPS then return nil end
  local members = {}
  for _, member in ipairs(redis.call('ZRANGE', q.avail, '-inf', now, 'BYSCORE')) do
    if tonumber(member) > marker then members[#members + 1] = member end
  end
  table.sort(members)
  return members
end

local steps, position = 0, 0
while #shown < limit and steps < STEPS do
  local ready = steps > 0 and few_ready()
  if ready then
    shown, records, position = {}, {}, 0
    show(ready)
    break
  end
  local want = math.min(steps == 0 and limit or math.max(limit - #shown, 100), STEPS - steps)
  local members = redis.call('ZRANGE', q.order, '(' .. ARGV[2], '+inf', 'BYSCORE', 'LIMIT', steps, want)
  show(members)
  steps = steps + #members
  position = tonumber(members[#members] or 0)
  if #members < want then position = 0; break end
end
local bodies = portion(q.bodies, shown, most)
if #shown >= limit or #bodies < #shown then position = 0 end
return answer(records, bodies, { struct.pack('>I8', position) })
