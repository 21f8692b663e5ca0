-- SPDX-License-Identifier: Apache-2.0
-- Fences, stages and commits.

---- part staging

-- Part of scripts on a project's stages and producers. transactions.py describes their layout.

local STAGE = '>I8I8I4'
local STAGED_QUEUE = '>I8I4'
local PRODUCER = '>I8I8I8'
local DRAFT_SIZE_AT = 25  -- offset of the size of the body in a draft: see layout.py

-- Returns the next nine keys: those of the project's transactions.
local function transactions()
  local at = keys(9)
  return {
    fences = KEYS[at], producers = KEYS[at + 1], producing = KEYS[at + 2], stages = KEYS[at + 3],
    staging = KEYS[at + 4], open = KEYS[at + 5], phase = KEYS[at + 6],
    work = KEYS[at + 7], moments = KEYS[at + 8],
  }
end

-- Adds a fence or a producer to the listing, with the time of its current epoch or batch.
local function enlist(t, member, now, place)
  redis.call('ZADD', t.work, 0, member)
  redis.call('HSET', t.moments, member, now .. ' ' .. place)
end

-- Returns a stage: its expiry, bytes of bodies, and the names of its queues with their lowest ttl. nil if it does not
-- exist.
local function staged(packed, now)
  if not packed or struct.unpack(STAGE, packed) <= now then return nil end
  local stage, count, at = { queues = {} }, nil, nil
  stage.expires, stage.bytes, count, at = struct.unpack(STAGE, packed)
  for i = 1, count do
    local least, length, first = struct.unpack(STAGED_QUEUE, packed, at)
    at = first + length
    stage.queues[i] = { least = least, name = string.sub(packed, first, at - 1) }
  end
  return stage
end

-- Counts staged messages with their bytes of bodies; negative numbers if they are removed.
local function count_staged(messages, bytes)
  local change = add_to_part('staged', messages)
  -- A server of an earlier version may have counted fewer messages of a stage than are removed.
  local none = redis.call('HEXISTS', KEYS[4], 'staged') == 0
  add_usage(change, add_to_part('staged_bytes', none and -math.huge or bytes + messages * OVERHEAD))
end

local function take_down(t, name)
  redis.call('HDEL', t.stages, name)
  redis.call('ZREM', t.staging, name)
  redis.call('ZREM', t.work, 's' .. name)
end

local function drop(t, name, content)
  local packed = redis.call('HGET', t.stages, name)
  if packed then
    local _, bytes = struct.unpack(STAGE, packed)
    count_staged(-redis.call('LLEN', content), -bytes)
  end
  take_down(t, name)
  redis.call('UNLINK', content)
end

---- script fence: allow-oom

-- Returns the next epoch of a fence. KEYS: project, queue (not used), transactions. ARGV: now, name of the fence.

local now, name, t = argument(), argument(), transactions()
local epoch = redis.call('HINCRBY', t.fences, name, 1)
enlist(t, 'f' .. name, now, epoch)
return epoch

---- script work_list: allow-oom

-- Lists live fences, producers or stages by name. KEYS: project, queue (not used), transactions. ARGV: now, first
-- letter of the kind, from and to (as for BYLEX), number of entries to examine. Returns the name to continue after, ""
-- at the end; then for each the name, its stored value, its time or "", and whether it has an open commit ("1").

local now, kind, from, to, limit = number(), argument(), argument(), argument(), argument()
local t = transactions()
local hashes = { f = t.fences, p = t.producers, s = t.stages }

-- Servers of earlier versions do not maintain the listing, so their additions and removals are detected here.
local function rebuild()
  redis.call('UNLINK', t.work)
  for letter, hash in pairs(hashes) do
    local members = {}
    for _, name in ipairs(redis.call('HKEYS', hash)) do
      members[#members + 1], members[#members + 2] = 0, letter .. name
    end
    put('ZADD', t.work, members)
  end
end

-- Returns the time of the current epoch or batch; "" if the stored time belongs to another one or is missing.
local function moment_of(name, kept)
  local moment, place = string.match(redis.call('HGET', t.moments, kind .. name) or '', '^(%d+) (.*)$')
  if kind == 'p' then kept = string.sub(kept, struct.size(PRODUCER) + 1) end
  return moment and place == kept and moment or ''
end

-- Returns nil if the entry does not exist any more.
local function look()
  local members = redis.call('ZRANGE', t.work, from, to, 'BYLEX', 'LIMIT', 0, limit)
  local found = { #members == tonumber(limit) and members[#members] or '' }
  for _, member in ipairs(members) do
    local name = string.sub(member, 2)
    local kept = redis.call('HGET', hashes[kind], name)
    if not kept then return nil end
    if kind == 'f' or struct.unpack('>I8', kept) > now then
      local moment, is_open = moment_of(name, kept), kind == 'p' and redis.call('HEXISTS', t.open, name) == 1
      for _, value in ipairs({ name, kept, moment, is_open and '1' or '' }) do found[#found + 1] = value end
    end
  end
  return found
end

local there = 0
for _, hash in pairs(hashes) do there = there + redis.call('HLEN', hash) end
local found = there == redis.call('ZCARD', t.work) and look()
if not found then
  rebuild()
  found = look()
end
return found

---- script stage

-- Adds messages to a stage, all or none. KEYS: project, queue, transactions, messages of the stage, idempotency results
-- if the request has a key. ARGV: now, stage, queue, expiry of a new stage, maximum bytes of bodies, maximum number of
-- messages, lowest ttl in ms; with a key: key, digest, expiry, result; then each message, see layout.encode_draft.
-- Returns "".

local now, name, queue, ends = number(), argument(), argument(), number()
local most, most_messages, least = number(), number(), number()
local t, content = transactions(), KEYS[keys(1)]
local key, digest, expires, answer
local once = #KEYS > key_at and keys(2)
if once then
  key, digest, expires, answer = argument(), argument(), number(), argument()
  local repeated = known(once, key, now)
  if repeated then return repeated end
end

local stage = staged(redis.call('HGET', t.stages, name), now)
if not stage then
  drop(t, name, content)
  stage = { expires = ends, bytes = 0, queues = {} }
end
local former = stage.bytes
for at = argument_at + 1, #ARGV do stage.bytes = stage.bytes + struct.unpack('>I4', ARGV[at], DRAFT_SIZE_AT) end
local count = redis.call('LLEN', content) + #ARGV - argument_at
if stage.bytes > most or count > most_messages then return { 'full' } end

local index = #stage.queues + 1
for i, found in ipairs(stage.queues) do
  if found.name == queue then index = i end
end
stage.queues[index] = stage.queues[index] or { least = least, name = queue }
stage.queues[index].least = math.min(stage.queues[index].least, least)
local pieces = { struct.pack(STAGE, stage.expires, stage.bytes, #stage.queues) }
for i, found in ipairs(stage.queues) do
  pieces[i + 1] = struct.pack(STAGED_QUEUE, found.least, #found.name) .. found.name
end
redis.call('HSET', t.stages, name, table.concat(pieces))
redis.call('ZADD', t.staging, stage.expires, name)
if count == #ARGV - argument_at then redis.call('ZADD', t.work, 0, 's' .. name) end

local messages = {}
for at = argument_at + 1, #ARGV do messages[#messages + 1] = struct.pack('>I4', index) .. ARGV[at] end
put('RPUSH', content, messages)
count_staged(#messages, stage.bytes - former)
if once then remember_for(queue, once, key, digest, expires, answer) end
return ''

---- script stage_drop: allow-oom

-- Drops a stage. KEYS: project, queue (not used), transactions, messages of the stage. ARGV: stage. Returns "".

drop(transactions(), argument(), KEYS[keys(1)])
return ''

---- part publishing

-- Part of scripts that publish staged messages, whose times are relative to the commit.

-- Adds staged messages (`drafts`) to their queues; `target_of` maps an index to a target. Returns the bytes of bodies.
local function publish(drafts, target_of, now)
  local batches, bytes = {}, 0
  for _, draft in ipairs(drafts) do
    local index, delay, life, _, size, id = struct.unpack('>I4I8I8I8I4I2', draft)
    local batch = batches[index]
    if not batch then
      local target = target_of(index)
      batch = batch_for(target.q, target.full, now)
      batches[index] = batch
    end
    local available, expires = delay > 0 and now + delay or 0, now + life
    local first = ENTRY_SIZE - DRAFT_FRONT + 5
    append(batch, string.sub(draft, first, first + id - 1), available, expires, size,
      struct.pack('>I8', expires) .. string.sub(draft, 21))
    bytes = bytes + size
  end
  for _, batch in pairs(batches) do store(batch) end
  return bytes
end

---- script commit

-- Publishes stages and settles claims, all or nothing. A commit that is too large for one step is only decided. KEYS:
-- project, queue (not used), transactions, messages of each stage, queues of claims, each with its history if it has
-- one, targets: the queues of the staged messages; if the commit may only be decided, the lists of an open commit.
-- ARGV: now, producer, batch, expiry of the producer, fence or "", epoch, numbers of stages, claims and targets,
-- maximum number of messages in a step and in total, bytes in a step, number of claims' queues, "" or the value of an
-- open commit; stages with their expected values and numbers of messages (-1: any number; -2: not checked); for each
-- claims' queue its seconds of history and its full name; claims with the number of their queue; full names of the
-- targets. Returns whether the batch was known (1 byte), whether it is open (1 byte), then the value of the producer.
-- Rejects the request with "restaged" if a stage has another value, so that keys of targets may be missing, and with
-- "large" if the commit must be decided only and the request has no value for that.

local now, producer, batch, ends, fence, epoch = number(), argument(), argument(), number(), argument(), number()
local t, stages, claims = transactions(), {}, {}
local stage_count, claim_count, target_count = number(), number(), number()
local step, most, capacity, list_count, opening = number(), number(), number(), number(), argument()
for i = 1, stage_count do
  stages[i] = { name = argument(), expected = argument(), count = number(), content = KEYS[keys(1)] }
end

local function drop_all()
  for _, stage in ipairs(stages) do drop(t, stage.name, stage.content) end
end

-- Returns whether a batch is above another; both are decimal strings, which may exceed Lua's numbers.
local function is_above(one, other) return #one > #other or #one == #other and one > other end

local last, is_open = redis.call('HGET', t.producers, producer), redis.call('HEXISTS', t.open, producer) == 1
if is_open and not last then return { 'running' } end
if last then
  local expires, _, _, first = struct.unpack(PRODUCER, last)
  local above = is_above(batch, string.sub(last, first))
  if is_open or expires > now and not above then
    if not above then drop_all() end
    return (above and '\0' or '\1') .. (is_open and '\1' or '\0') .. last
  end
end
local refused = fenced(t.fences, fence, epoch)
if refused then return refused end
local published, uncounted, size = 0, 0, 0
for _, stage in ipairs(stages) do
  local packed = redis.call('HGET', t.stages, stage.name)
  local found = staged(packed, now)
  if not found then return { 'unstaged', stage.name } end
  if packed ~= stage.expected then return { 'restaged' } end
  local count = redis.call('LLEN', stage.content)
  if stage.count >= 0 and stage.count ~= count then return { 'differs', stage.name, count, stage.count } end
  stage.queues = found.queues
  if stage.count == -2 then uncounted = uncounted + count else published = published + count end
  size = size + found.bytes
end

local lists = {}
for i = 1, list_count do
  lists[i] = { q = queue_at(keys(10)), h = history(number()) }
  lists[i].q.full = argument()
end

-- Returns the members of a list in two parts: those whose claim has not ended, and the others. Reads only `claimed`.
local function split(q, list)
  local members, live, lapsed = members_in(list), {}, {}
  for first = 1, #members, SLICE do
    local scores = redis.call('ZMSCORE', q.claimed, unpack(members, first, math.min(first + SLICE - 1, #members)))
    for i, score in ipairs(scores) do
      local into = score and tonumber(score) > now and live or lapsed
      into[#into + 1] = members[first + i - 1]
    end
  end
  return table.concat(live), table.concat(lapsed)
end

-- Returns the messages of a claim. A named claim may have messages of an earlier, lapsed claim at its front. The other
-- messages have the same end, unless a field says that they may differ.
local function members_of(q, claim)
  local list = redis.call('HGET', q.claims, claim) or ''
  if list == '' then return list, '' end
  local first = redis.call('ZSCORE', q.claimed, string.sub(list, 1, MEMBER_SIZE))
  local mixed = redis.call('HEXISTS', q.claims, MIXED .. claim) == 1
  if not mixed and first and tonumber(first) > now then return list, '' end
  return split(q, list)
end

local deleted = 0
for i = 1, claim_count do
  local claim = { id = argument(), list = number() + 1 }
  claim.q, claim.h = lists[claim.list].q, lists[claim.list].h
  claim.live, claim.lapsed = members_of(claim.q, claim.id)
  if claim.live == '' then return { 'lapsed', claim.id } end
  deleted = deleted + #claim.live / MEMBER_SIZE
  claims[i] = claim
end
local targets = {}
for _, target in ipairs(read_targets(target_count)) do targets[name_of(target.full)] = target end
if published + deleted > most then return { 'much', published + deleted, most } end
local large = published + uncounted + deleted > step or size > capacity
if large and opening == '' then return { 'large' } end

-- Reserves the messages of a claim for this commit and removes them from the claim's list. To keep this step short,
-- many index entries, and those of grouped queues, stay until another script reads them.
local function reserve_claim(claim, list)
  local is_grouped = redis.call('HEXISTS', claim.q.state, 'grouping') == 1
  if deleted <= SLICE and not is_grouped then reserve(claim.q, members_in(claim.live)) end
  redis.call('RPUSH', list, claim.live)
  if claim.lapsed ~= '' then
    redis.call('HSET', claim.q.claims, claim.id, claim.lapsed)
  else
    redis.call('HDEL', claim.q.claims, claim.id, HOLDER .. claim.id, MIXED .. claim.id)
  end
end

local function open()
  local first = keys(list_count + stage_count)
  for i = 0, list_count + stage_count - 1 do redis.call('UNLINK', KEYS[first + i]) end
  for _, claim in ipairs(claims) do reserve_claim(claim, KEYS[first + claim.list - 1]) end
  for i, stage in ipairs(stages) do
    redis.call('RENAME', stage.content, KEYS[first + list_count + i - 1])
    take_down(t, stage.name)
  end
  redis.call('HSET', t.open, producer, opening)
  redis.call('HSET', t.phase, producer, 0)
end

local function finish_all()
  for _, claim in ipairs(claims) do
    finish(claim.q, claim.h, in_sequence(load(claim.q, members_in(claim.live))), now, DELETED)
  end
  for _, stage in ipairs(stages) do
    local count = redis.call('LLEN', stage.content)
    for from = 0, count - 1, SLICE do
      local drafts = redis.call('LRANGE', stage.content, from, from + SLICE - 1)
      publish(drafts, function(index) return targets[stage.queues[index].name] end, now)
    end
  end
  drop_all()
end

if large then open() else finish_all() end
local kept = struct.pack(PRODUCER, ends, published, deleted) .. batch
redis.call('HSET', t.producers, producer, kept)
redis.call('ZADD', t.producing, ends, producer)
enlist(t, 'p' .. producer, now, batch)
return '\0' .. (large and '\1' or '\0') .. kept

---- script carry: allow-oom

-- Carries out one slice of an open commit: deletes or publishes the next messages of one of its lists. KEYS: project,
-- queue (not used), transactions, the list; for a list of claims the queue, with its history if it has one; for a stage
-- the targets. ARGV: now, producer, value of the commit, number of the list, number of lists, maximum number of
-- messages, bytes; for claims "1", seconds of history and the full name; for a stage "0", number of targets and their
-- full names. Returns 1 if messages remain, else 0.

local CHUNK = 8  -- number of messages to read first; it doubles each time, because bodies may be large
local now, producer, expected, phase, phases = number(), argument(), argument(), number(), number()
local most, capacity = number(), number()
local t, list = transactions(), KEYS[keys(1)]
if redis.call('HGET', t.open, producer) ~= expected then return 0 end
if tonumber(redis.call('HGET', t.phase, producer)) ~= phase then return 1 end

-- Removes the next members from the list, whose items each contain the members of one claim.
local function next_members()
  local members = {}
  while #members < most do
    local item = redis.call('LPOP', list)
    if not item then break end
    local size = math.min(#item, (most - #members) * MEMBER_SIZE)
    for _, member in ipairs(members_in(string.sub(item, 1, size))) do members[#members + 1] = member end
    if size < #item then redis.call('LPUSH', list, string.sub(item, size + 1)) end
  end
  return members
end

local function settle()
  local q = queue_at(keys(10))
  local h = history(number())
  q.full = argument()
  -- Messages that were purged or deleted in the meantime are missing.
  finish(q, h, in_sequence(load(q, next_members())), now, DELETED)
  return 0
end

local function publish_some()
  local targets, taken, bytes, chunk = read_targets(number()), 0, 0, CHUNK
  while taken < most and bytes < capacity do
    local drafts = redis.call('LRANGE', list, taken, math.min(taken + chunk, most) - 1)
    if #drafts == 0 then break end
    bytes = bytes + publish(drafts, function(index) return targets[index] end, now)
    taken, chunk = taken + #drafts, math.min(2 * chunk, SLICE)
  end
  count_staged(-taken, -bytes)
  return taken
end

local settles = argument() == '1'
local taken = settles and settle() or not settles and publish_some()
if taken > 0 then redis.call('LTRIM', list, taken, -1) end
if redis.call('EXISTS', list) == 1 then return 1 end
if phase + 1 < phases then
  redis.call('HSET', t.phase, producer, phase + 1)
  return 1
end
redis.call('HDEL', t.open, producer)
redis.call('HDEL', t.phase, producer)
return 0
