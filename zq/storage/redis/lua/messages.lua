-- SPDX-License-Identifier: Apache-2.0
-- Messages: post, read, delete.

---- part posting

-- Part of scripts that add messages to queues.

local GAP = 100   -- maximum number of consecutive messages outside the lane: see append

-- Creates a queue that does not exist. Its first sequence is higher than all sequences of its predecessors.
local function create(q, name, metadata)
  redis.call('ZADD', KEYS[1], 0, name)
  redis.call('HSET', KEYS[2], name, metadata)
  local floor = tonumber(redis.call('GET', KEYS[3]) or 0)
  redis.call('HSET', q.state, 'sequence', floor, 'fresh', 0)
  return floor
end

-- Fields of a queue's state that most posts do not change.
local SELDOM = { 'head', 'gap', 'ceiling' }

-- Collects new messages of a queue, which is created if it is missing: call `append` for each message, then `store`.
-- `texts`: times in the format of commands.
local function batch_for(q, full, now)
  local state = redis.call('HMGET', q.state, 'sequence', 'fresh', 'start', 'entered', 'from', 'stored', 'bytes',
    'laned', 'head', 'gap', 'ceiling', 'grouping')
  local sequence = tonumber(state[1] or create(q, name_of(full), '{}'))
  local start = tonumber(state[3])
  if not start then
    start = now * PER_MS - sequence
    redis.call('HSET', q.state, 'start', start)
  end
  if not state[5] then redis.call('HSET', q.state, 'from', sequence) end
  local former = { head = tonumber(state[9] or 0), gap = tonumber(state[10] or 0), ceiling = tonumber(state[11] or 0) }
  local kind = state[12] and tonumber(state[12])
  q.full = full
  return {
    q = q, full = full, now = now, sequence = counted(sequence, start, now), fresh = tonumber(state[2] or 0),
    entered = tonumber(state[4] or 0), stored = tonumber(state[6] or 0), bytes = tonumber(state[7] or 0),
    laned = tonumber(state[8] or 0), head = former.head, gap = former.gap, ceiling = former.ceiling, former = former,
    count = 0, added = 0, kind = kind, mark = kind and string.char(kind), lined = {},
    texts = {}, fronts = {}, avail = {}, sequences = {}, values = {}, expiry = {}, bodies = {}, ids = {},
  }
end

-- Returns whether the message with the last sequence, which has no delay, joins the lane, in which times must increase.
-- A message that follows many messages outside the lane does not join it, so that readers never skip more than GAP
-- messages.
local function joins(batch, available)
  local is_empty = batch.head >= batch.laned
  if available < batch.ceiling or batch.gap >= GAP and not is_empty then return false end
  if is_empty then batch.head = batch.sequence - 1 end
  batch.laned, batch.gap = batch.sequence, 0
  return true
end

-- Adds a message with this id. `rest`: the part of its entry after the available-at, and the body of `size` bytes. If
-- `available` is 0, the available-at is the larger of now and the last available-at of the queue (L5).
local function append(batch, id, available, expires, size, rest)
  local sequence, at, texts, listed, kind = batch.sequence + 1, batch.count + 1, batch.texts, true, batch.kind
  local n, member = 2 * at - 1, struct.pack(MEMBER, sequence)
  batch.sequence, batch.count, batch.added = sequence, at, batch.added + OVERHEAD + size
  if available == 0 then
    available = risen(batch.fresh, batch.now)
    if available < batch.fresh then batch.ceiling = math.max(batch.ceiling, batch.fresh) end
    batch.fresh = available
    listed = kind or not joins(batch, available)
  end
  local fronts = batch.fronts
  fronts[available] = fronts[available] or struct.pack('>I8', available)
  if listed and not kind then
    local avail = batch.avail
    texts[available] = texts[available] or string.format('%.0f', available)
    avail[#avail + 1] = texts[available]
    avail[#avail + 1] = member
    batch.gap = batch.gap + 1
  end
  if size >= LARGE then
    local bodies = batch.bodies
    bodies[#bodies + 1] = member
    bodies[#bodies + 1] = string.sub(rest, -size)
    rest = string.sub(rest, 1, -size - 1)
  end
  texts[expires] = texts[expires] or string.format('%.0f', expires)
  local expiry, ids = batch.expiry, batch.ids
  expiry[n], expiry[n + 1] = texts[expires], member
  ids[n], ids[n + 1] = id, member
  local value = (kind and batch.mark or listed and '\1' or '\0') .. member .. fronts[available] .. rest
  batch.sequences[at], batch.values[at] = sequence, value
  if kind then
    local more = struct.unpack('>I2', value, SIZES_AT + 4)
    batch.lined[at] = {
      kind = kind, value = value, more = more, member = member, sequence = sequence, available = available,
      expires = expires,
    }
  end
end

local function store(batch)
  local q, count = batch.q, batch.count
  local changes = { 'sequence', batch.sequence, 'fresh', batch.fresh, 'entered', batch.entered + count,
    'stored', batch.stored + count, 'bytes', batch.bytes + batch.added, 'laned', batch.laned }
  for _, field in ipairs(SELDOM) do
    if batch[field] ~= batch.former[field] then
      changes[#changes + 1] = field
      changes[#changes + 1] = batch[field]
    end
  end
  redis.call('HSET', q.state, unpack(changes))
  add_usage(count, batch.added)
  for i, sequence in ipairs(batch.sequences) do redis.call('XADD', q.stream, sequence, 'm', batch.values[i]) end
  put('ZADD', q.expiry, batch.expiry)
  put('HSET', q.ids, batch.ids)
  put('ZADD', q.avail, batch.avail)
  put('HSET', q.bodies, batch.bodies)
  if batch.kind then change_lines(q, batch.now, {}, batch.lined) end
  notify(batch.full)
end

---- script post

-- Appends messages to a queue, all or none. Creates a missing queue if this is allowed (1). KEYS: project, queue; the
-- queue of the copies, if there are any; its idempotency results if the post has a key. ARGV: now, full name of the
-- queue, expected metadata ("" = any), whether the queue may be created (1), number of copies; if it is not 0, the full
-- name of their queue; with keys: their number, and for each key the number of its message (0: all), the key, digest,
-- expiry, and the result without the last sequence; then each copy and each message, see layout.encode_draft.
-- Returns "". If the metadata differ, returns them and stores nothing. If keys of messages are known, stores nothing
-- and returns a table of "repeated" and, for each, its message and the stored result.

local q, now, full, expected, may_create, copies =
  queue_at(5), number(), argument(), argument(), argument() == '1', number()
local target = copies > 0 and { full = argument(), q = queue_at(keys(10)) }
local once, onces, repeated = #KEYS > key_at and keys(2), {}, { 'repeated' }
for i = 1, once and number() or 0 do
  local each = { of = number(), key = argument(), digest = argument(), expires = number(), answer = argument() }
  local kept = known(once, each.key, now)
  if kept and each.of == 0 then return kept end
  if kept then
    repeated[#repeated + 1] = each.of
    repeated[#repeated + 1] = kept[2]
  end
  onces[i] = each
end
if #repeated > 1 then return repeated end
if not may_create and redis.call('EXISTS', q.state) == 0 then return { 'missing' } end
local other = other_metadata(name_of(full), expected)
if other then return other end
local function post(batch, first, last)
  for at = first, last do
    local draft = ARGV[at]
    local available, expires, _, size, id = struct.unpack('>I8I8I8I4I2', draft)
    local first = ENTRY_SIZE - DRAFT_FRONT + 1
    append(batch, string.sub(draft, first, first + id - 1), available, expires, size, string.sub(draft, 9))
  end
  store(batch)
  return batch.sequences
end
local first = argument_at + 1 + copies
if target then post(batch_for(target.q, target.full, now), argument_at + 1, first - 1) end
local sequences = post(batch_for(q, full, now), first, #ARGV)
for _, each in ipairs(onces) do
  local answer = each.answer .. struct.pack('>I8', sequences[each.of > 0 and each.of or #sequences])
  remember_for(name_of(full), once, each.key, each.digest, each.expires, answer)
end
return ''

---- script get: no-writes

-- Returns the live messages with these ids, in this order. KEYS: project, queue. ARGV: now, ids.

local q, ids = queue_at(5), {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] end
return answer(q, locate(q, ids, tonumber(ARGV[1])), {})

---- script list: no-writes

-- Lists the messages above a marker that match the filter, by sequence. KEYS: project, queue. ARGV: now, marker, limit,
-- maximum bytes of bodies, client whose messages are hidden or "", whether claimed and delayed messages are listed
-- ("1"), name of the queue, expected metadata ("" = any). Returns the marker to continue from (8 bytes; 0: no more
-- messages or the page is full) and the messages; if the metadata differ, returns only them, in a table.

local q, now, marker, limit = queue_at(5), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, without, claimed, delayed = tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1', ARGV[7] == '1'

local other = other_metadata(ARGV[8], ARGV[9])
if other then return { other } end

local lists = {}

-- Returns whether a commit will delete a message whose claim would have ended: see `on_list`.
local function is_reserved(m)
  if m.claim == '' then return false end
  lists[m.claim] = lists[m.claim] or on_list(q, m.claim)
  return not lists[m.claim][m.member]
end

local function shows(m)
  if m.expires <= now then return false end
  if m.ends > now then return claimed end
  local free = delayed or m.available <= now
  if free == claimed then return free end
  return is_reserved(m) == claimed
end

local shown = {}

local function show(messages)
  for _, m in ipairs(messages) do
    if #shown < limit and shows(m) and (without == '' or client_of(m) ~= without) then shown[#shown + 1] = m end
  end
end

-- Lists the free messages between the marker and the lane by sequence, if they are few, so that no claimed messages must
-- be skipped. Returns the sequence to continue from, or nil if no messages must be skipped.
local function skip(from)
  if claimed then return from end
  local latest = { [q.avail] = delayed and '+inf' or now, [q.claimed] = now }
  local count = 0
  for key, score in pairs(latest) do count = count + redis.call('ZCOUNT', key, '-inf', score) end
  if count > STEPS then return from end
  local head, last, is_grouped = lane_of(q)
  if is_grouped then return from end
  if head >= last then head = math.huge end
  if head < from then return from end
  local members = {}
  for key, score in pairs(latest) do
    for _, member in ipairs(redis.call('ZRANGE', key, '-inf', score, 'BYSCORE')) do
      local sequence = struct.unpack(MEMBER, member)
      if sequence >= from and sequence <= head then members[#members + 1] = member end
    end
  end
  show(in_sequence(load(q, members)))
  return head < math.huge and head + 1 or nil
end

local steps, position, from = 0, 0, marker + 1
while #shown < limit and steps < STEPS do
  if steps > 0 then
    from = skip(from)
    position = from and from - 1 or 0
    if not from or #shown == limit then break end
  end
  local want = math.min(steps == 0 and limit or math.max(limit - #shown, 100), STEPS)
  local messages = parsed(q, redis.call('XRANGE', q.stream, from, '+', 'COUNT', want))
  show(messages)
  steps = steps + #messages
  if #messages < want then position = 0; break end
  position = messages[#messages].sequence
  from = position + 1
end
local fitting = portion(shown, most)
if #shown >= limit or #fitting < #shown then position = 0 end
return answer(q, fitting, { struct.pack('>I8', position) })

---- script delete: allow-oom

-- Deletes messages by id. KEYS: project, queue, history if the queue has one. ARGV: now, full name of the queue,
-- seconds of history, number of the caller's claims (-1: ignore claims), claims, ids. Returns ""; returns "claimed" (by
-- another claim) or "unheld" (not in the named claims) without removing any message.

local q, now, full, h, count = queue_at(5), number(), argument(), history(number()), number()
q.full = full
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

-- Removes ready messages from the front of the queue. KEYS: project, queue, history if the queue has one. ARGV: now,
-- limit, maximum bytes of bodies, seconds of history, full name of the queue, expected metadata ("" = any). Returns
-- whether to call again (1 byte) because the call has skipped its maximum number of entries, the number of expired
-- messages that it removed (4 bytes), and the messages; if the metadata differ, returns only them, in a table.

local q, now, limit, most, h = queue_at(5), number(), number(), number(), history(number())
q.full = argument()
local other = other_metadata(name_of(q.full), argument())
if other then return { other } end
local found, more, expired, lane = take(q, limit, now)
found = portion(found, most)
local reply = answer(q, found, { more and '\1' or '\0', struct.pack('>I4', expired) })
advance(q, lane, found)
finish(q, h, found, now, POPPED)
return reply
