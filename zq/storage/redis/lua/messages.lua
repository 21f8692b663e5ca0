-- SPDX-License-Identifier: Apache-2.0
-- Messages: posting, reading, deleting.

---- part posting

-- Part of scripts that put messages into queues.

local NEW = string.rep('\0', 38)  -- what stands in a record between ttl and tail of a message that was never claimed

-- Creates a queue that is known to be missing; its first sequence comes after all of its predecessors.
local function create(q, name, metadata)
  redis.call('ZADD', KEYS[1], 0, name)
  redis.call('HSET', KEYS[2], name, metadata)
  local floor = tonumber(redis.call('GET', KEYS[3]) or 0)
  redis.call('HSET', q.state, 'sequence', floor, 'fresh', 0)
  return floor
end

-- New messages of a queue, which is created if it is missing: `append` each, then `store` them. `texts`: moments as the
-- commands take them.
local function batch_for(q, full, now)
  local state = redis.call('HMGET', q.state, 'sequence', 'fresh', 'start', 'entered', 'from', 'stored', 'bytes')
  local sequence = tonumber(state[1] or create(q, name_of(full), '{}'))
  local start = tonumber(state[3])
  if not start then
    start = now * PER_MS - sequence
    redis.call('HSET', q.state, 'start', start)
  end
  if not state[5] then redis.call('HSET', q.state, 'from', sequence) end
  return {
    q = q, full = full, now = now, sequence = counted(sequence, start, now), fresh = tonumber(state[2] or 0),
    entered = tonumber(state[4] or 0), stored = tonumber(state[6] or 0), bytes = tonumber(state[7] or 0),
    size = 0, added = 0,
    texts = {}, avail = {}, order = {}, expiry = {}, records = {}, bodies = {}, ids = {},
  }
end

-- Adds a message; `front` and `rest` are what stands in its record behind the ttl. Where `available` is 0, it becomes
-- available at the larger of now and the queue's last such moment (L5).
local function append(batch, id, available, expires, ttl, front, rest, body)
  if available == 0 then
    batch.fresh = risen(batch.fresh, batch.now)
    available = batch.fresh
  end
  local sequence, n, texts = batch.sequence + 1, batch.size, batch.texts
  local member = string.format('%014.0f', sequence)
  batch.sequence, batch.size, batch.added = sequence, n + 2, batch.added + OVERHEAD + #body
  texts[available] = texts[available] or string.format('%.0f', available)
  texts[expires] = texts[expires] or string.format('%.0f', expires)
  local avail, order, expiry = batch.avail, batch.order, batch.expiry
  local records, bodies, ids = batch.records, batch.bodies, batch.ids
  avail[n + 1], avail[n + 2] = texts[available], member
  order[n + 1], order[n + 2] = member, member
  expiry[n + 1], expiry[n + 2] = texts[expires], member
  records[n + 1], records[n + 2] = member, struct.pack('>I8I8I8I8', sequence, available, expires, ttl) .. front .. rest
  bodies[n + 1], bodies[n + 2] = member, body
  ids[n + 1], ids[n + 2] = id, member
end

local function store(batch)
  local q, count = batch.q, batch.size / 2
  redis.call('HSET', q.state, 'sequence', batch.sequence, 'fresh', batch.fresh, 'entered', batch.entered + count,
    'stored', batch.stored + count, 'bytes', batch.bytes + batch.added)
  add_usage(count, batch.added)
  put('ZADD', q.avail, batch.avail)
  put('ZADD', q.order, batch.order)
  put('ZADD', q.expiry, batch.expiry)
  put('HSET', q.records, batch.records)
  put('HSET', q.bodies, batch.bodies)
  put('HSET', q.ids, batch.ids)
  notify(batch.full)
end

---- script post

-- Stores messages behind all others of a queue, all or none; creates the queue if it is missing.
-- KEYS: project, queue; the queue of the copies, if there are any; its answers if the post has a key.
-- ARGV: now, queue's full name, expected metadata ("" = any), how many copies; if any, the full name of their queue;
-- with a key: it, digest, until when it is kept, the answer; then record and body of each copy and each message.
-- Returns "", or the metadata if they are others; then nothing is stored.

local q, now, full, expected, copies = queue_at(5), number(), argument(), argument(), number()
local target = copies > 0 and { full = argument(), q = queue_at(keys(9)) }
local key, digest, expires, answer
local once = #KEYS > key_at and keys(2)
if once then
  key, digest, expires, answer = argument(), argument(), number(), argument()
  local repeated = known(once, key, now)
  if repeated then return repeated end
end
local other = other_metadata(name_of(full), expected)
if other then return other end
local function post(batch, first, last)
  for at = first, last, 2 do
    local record = ARGV[at]
    local available, expires, ttl = struct.unpack('>I8I8I8', record, 9)
    append(batch, id_of(record), available, expires, ttl, '', string.sub(record, 33), ARGV[at + 1])
  end
  store(batch)
end
local first = argument_at + 1 + 2 * copies
if target then post(batch_for(target.q, target.full, now), argument_at + 1, first - 1) end
post(batch_for(q, full, now), first, #ARGV)
if once then remember_for(name_of(full), once, key, digest, expires, answer) end
return ''

---- script get: no-writes

-- KEYS: project, queue. ARGV: now, ids. Returns those of them that live, in this order: records with bodies.

local q, ids = queue_at(5), {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] end
return answer_with(with_bodies(q, locate(q, ids, tonumber(ARGV[1])), math.huge), {})

---- script list: no-writes

-- Messages above a marker that a filter lets through, in sequence.
-- KEYS: project, queue.
-- ARGV: now, marker, limit, bytes of bodies, client whose own are hidden or "", claimed shown, delayed shown ("1"),
-- queue's name, expected metadata ("" = any).
-- Returns the marker to go on from (8 bytes; 0: nothing is left or the page is full), records with bodies; or, if the
-- metadata are others, these alone in a table.

local q, now, marker, limit = queue_at(5), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, without, claimed, delayed = tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1', ARGV[7] == '1'

local other = other_metadata(ARGV[8], ARGV[9])
if other then return { other } end

local function client_of(record)
  local id, client = struct.unpack('>I2I2', record, HEAD_SIZE + 13)
  local first = HEAD_SIZE + TAIL_SIZE + 1 + id
  return string.sub(record, first, first + client - 1)
end

local lists = {}

-- Whether a commit is going to delete a message whose claim would have ended: see `on_list` in shared.lua.
local function is_reserved(member, record)
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
  return is_reserved(member, record) == claimed
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

---- script delete: allow-oom

-- Removes messages by id. KEYS: project, queue, history if there is one.
-- ARGV: now, seconds of history, number of the caller's claims (-1: it stands above claims), claims, ids.
-- Returns "" or, nothing being removed, "claimed" (by another claim) or "unheld" (though claims were named).

local q, now, h, count = queue_at(5), number(), history(number()), number()
local claims, ids = {}, {}
for _ = 1, count do claims[argument()] = true end
for at = argument_at + 1, #ARGV do ids[#ids + 1] = ARGV[at] end
local found = locate(q, ids, now)
if count >= 0 then
  local taken = reserved(q, found)
  for _, m in ipairs(found) do
    if taken[m.member] then return { 'claimed' } end
    local live = m.claim ~= '' and m.ends > now
    if live and not claims[m.claim] then return { 'claimed' } end
    if count > 0 and not live then return { 'unheld' } end
  end
end
finish(q, h, found, now, DELETED)
return ''

---- script pop: allow-oom

-- Removes ready messages from the front. KEYS: project, queue, history if there is one.
-- ARGV: now, limit, bytes of bodies, seconds of history, queue's name, expected metadata ("" = any).
-- Returns whether to look again (1 byte): too many had expired in front; how many expired ones went (4 bytes); records
-- with bodies; or, if the metadata are others, these alone in a table.

local q, now, limit, most, h = queue_at(5), number(), number(), number(), history(number())
local other = other_metadata(argument(), argument())
if other then return { other } end
local found, more, expired = take(q, limit, now)
found = with_bodies(q, found, most)
local reply = answer_with(found, { more and '\1' or '\0', struct.pack('>I4', expired) })
finish(q, h, found, now, POPPED)
return reply
