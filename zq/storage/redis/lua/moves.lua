-- SPDX-License-Identifier: Apache-2.0
-- Moves between queues of a project.

---- part moving

-- Part of scripts that move messages to other queues of the project, or to new positions in their own queue. A move is
-- a table: `m`, the message; `to`, the target; `ttl` (-1: unchanged); `delay` in seconds; `keeps_age` (1: in any case);
-- `may_create` (1: a missing target is created); `reason` ("" unless the message becomes a dead letter); `body` and `checksum` if the message gets a new body. A
-- target is a table: `q`, and its name `full`.

-- Returns the creation time of a message, its checksum, the number of bytes of attributes after its body, and its
-- group.
local function origin_of(m)
  local _, _, _, expires, ttl = struct.unpack(ENTRY, m.value)
  local created = expires - ttl * 1000
  if m.more == 0 then return created, '', 0, '' end
  local told, checksum, _, attributes, group = more_of(m)
  return told > 0 and told or created, checksum, attributes, group
end

-- Adds a message with its body to the target (model.Move). Returns its expiry.
local function send(item, origin, now, body)
  local m, reason = item.m, item.reason
  local ttl = item.ttl >= 0 and item.ttl or m.ttl
  local expires, available = now + ttl * 1000, item.delay > 0 and now + item.delay * 1000 or 0
  local id, client = struct.unpack('>I2I2', m.value, SIZES_AT)
  local created, checksum, attributes, group = origin_of(m)
  local count, first = m.count, first_claimed_of(m)
  if item.body then
    body, checksum = item.body .. string.sub(body, #body - attributes + 1), item.checksum
  end
  if reason == '' then
    count, first, origin = 0, 0, ''
    if item.keeps_age == 0 then created = 0 end
  end
  local more, tail = '', ''
  if first > 0 or attributes > 0 or group ~= '' then tail = struct.pack(TAIL, first, attributes) .. group end
  if created > 0 or checksum .. tail ~= '' then
    more = struct.pack(MORE, created, count, #checksum, #origin, #reason) .. checksum .. origin .. reason .. tail
  end
  local rest = struct.pack('>I8I8I4I2I2I2', expires, ttl, #body, id, client, #more)
    .. string.sub(m.value, ENTRY_SIZE + 1, ENTRY_SIZE + id + client) .. more .. body
  append(item.to.batch, id_of(m), available, expires, #body, rest)
  return expires
end

-- Moves messages out of the queue `q` with this full name. Its history `h` gets an entry for each. `earliest` of each
-- target is the earliest expiry of the messages that it received.
local function move_all(q, h, full, moves, now)
  local origin, messages, targets = name_of(full), {}, {}
  for i, item in ipairs(moves) do
    messages[i] = item.m
    item.m.outcome = item.reason == '' and MOVED or DEAD_LETTERED
  end
  local bodies = bodies_of(q, messages)
  finish(q, h, messages, now)
  for i, item in ipairs(moves) do
    local to = item.to
    if not to.batch then
      to.batch = batch_for(to.q, to.full, now)
      targets[#targets + 1] = to
    end
    local expires = send(item, origin, now, bodies[i])
    to.earliest = math.min(to.earliest or expires, expires)
  end
  for _, to in ipairs(targets) do
    store(to.batch)
    to.batch = nil
  end
end

-- Returns the next targets: their names from ARGV, their keys from KEYS.
local function read_targets(count)
  local targets = {}
  for i = 1, count do targets[i] = { full = argument(), q = queue_at(keys(10)) } end
  return targets
end

-- Returns the rest of ARGV: moves by message id, and these ids in order.
local function read_moves(targets)
  local moves, ids = {}, {}
  while argument_at < #ARGV do
    local id, to = argument(), targets[number()]
    ids[#ids + 1] = id
    moves[id] = { to = to, ttl = number(), delay = number(), keeps_age = number(), may_create = number() }
    moves[id].reason, moves[id].checksum = argument(), argument()
    if number() == 1 then moves[id].body = argument() end
  end
  return moves, ids
end

-- Returns the reply of a script if the target of a move is missing and must not be created, else nil.
local function missing_target(moves)
  for _, item in ipairs(moves) do
    if item.may_create == 0 and redis.call('EXISTS', item.to.q.state) == 0 then return { 'missing' } end
  end
end

-- Returns for each target the earliest expiry of its new messages, or 0: the beginning of a reply.
local function earliest(targets)
  local pieces = {}
  for i, to in ipairs(targets) do pieces[i] = struct.pack('>I8', to.earliest or 0) end
  return table.concat(pieces)
end

---- script move: allow-oom

-- Moves ready messages. KEYS: project, queue, history if the queue has one, targets. ARGV: now, full name of the queue,
-- seconds of history, number of targets; targets and moves, see `moving`. Returns for each target the earliest expiry
-- of its new messages, then the ids of the moved messages.

local q, now, full, h, count = queue_at(5), number(), argument(), history(number()), number()
q.full = full
local targets = read_targets(count)
local moves, ids = read_moves(targets)
local moved, gone, found = {}, {}, locate(q, ids, now)
local taken = reserved(q, found)
for _, m in ipairs(found) do
  if not taken[m.member] and m.ends <= now and m.available <= now then
    local id = id_of(m)
    moves[id].m = m
    moved[#moved + 1], gone[#gone + 1] = moves[id], id
  end
end
local refused = missing_target(moved)
if refused then return refused end
if #moved > 0 then move_all(q, h, full, moved, now) end
return earliest(targets) .. listed_ids(gone)
