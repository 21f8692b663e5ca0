#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Publishes stages and settles claims, all or nothing; or decides to, if that is more than one step may be.
-- KEYS: project, queue (not used), transactions, messages of each stage, queues of claims, each with its history if there
-- is one, targets: the queues of the staged messages; if it may be decided only, the lists of an open commit.
-- ARGV: now, producer, batch, when the producer expires, fence or "", epoch, numbers of stages, claims and targets, most
-- messages in a step and at all, bytes in a step, number of claims' queues, "" or what is kept of an open commit;
-- stages with what they are expected to be and with how many messages (-1: any number); claims' queues' seconds of
-- history; claims with the number of their queue; targets' full names.
-- Returns whether the batch was known (1 byte), whether it is open (1 byte), then what is kept of the producer. Refuses
-- with "restaged" if a stage is another than expected, so that there may be targets whose keys are not given, and with
-- "large" if it must be decided only and nothing is given for that.

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

-- Whether a batch is above another; both in digits, which may be more than a number of Lua has.
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
local published, size = 0, 0
for _, stage in ipairs(stages) do
  local packed = redis.call('HGET', t.stages, stage.name)
  local found = staged(packed, now)
  if not found then return { 'unstaged' } end
  if packed ~= stage.expected then return { 'restaged' } end
  local count = redis.call('LLEN', stage.content) / 2
  if stage.count >= 0 and stage.count ~= count then return { 'differs', stage.name, count, stage.count } end
  stage.queues = found.queues
  published, size = published + count, size + found.bytes
end

local lists = {}
for i = 1, list_count do lists[i] = { q = queue_at(keys(9)), h = history(number()) } end

-- The members that a list has, and of them those with a claim end that is to come, by the index of claims alone.
local function split(q, list)
  local members, live, lapsed = {}, {}, {}
  for at = 1, #list, DIGITS do members[#members + 1] = string.sub(list, at, at + DIGITS - 1) end
  for first = 1, #members, SLICE do
    local scores = redis.call('ZMSCORE', q.claimed, unpack(members, first, math.min(first + SLICE - 1, #members)))
    for i, score in ipairs(scores) do
      local into = score and tonumber(score) > now and live or lapsed
      into[#into + 1] = members[first + i - 1]
    end
  end
  return table.concat(live), table.concat(lapsed)
end

-- All that the claim holds. A claim of a name that lapsed before has what is left of that one in front.
local function members_of(q, claim)
  local list = redis.call('HGET', q.claims, claim) or ''
  if list == '' then return list, '' end
  local first = redis.call('ZSCORE', q.claimed, string.sub(list, 1, DIGITS))
  if first and tonumber(first) > now then return list, '' end
  return split(q, list)
end

local deleted = 0
for i = 1, claim_count do
  local claim = { id = argument(), list = number() + 1 }
  claim.q, claim.h = lists[claim.list].q, lists[claim.list].h
  claim.live, claim.lapsed = members_of(claim.q, claim.id)
  if claim.live == '' then return { 'lapsed' } end
  deleted = deleted + #claim.live / DIGITS
  claims[i] = claim
end
local targets = {}
for _, target in ipairs(read_targets(target_count)) do targets[name_of(target.full)] = target end
if published + deleted > most then return { 'much', published + deleted } end
local large = published + deleted > step or size > capacity
if large and opening == '' then return { 'large' } end

local function members_in(list)
  local members = {}
  for at = 1, #list, DIGITS do members[#members + 1] = string.sub(list, at, at + DIGITS - 1) end
  return members
end

-- Keeps the messages of a claim for this commit: they are on no claim's list any more. The index entries of many are
-- left as they are, for whoever comes across them, so that this step is a short one.
local function reserve(claim, list)
  if deleted <= SLICE then pin(claim.q, members_in(claim.live)) end
  redis.call('RPUSH', list, claim.live)
  if claim.lapsed ~= '' then
    redis.call('HSET', claim.q.claims, claim.id, claim.lapsed)
  else
    redis.call('HDEL', claim.q.claims, claim.id)
  end
end

local function open()
  local first = keys(list_count + stage_count)
  for i = 0, list_count + stage_count - 1 do redis.call('UNLINK', KEYS[first + i]) end
  for _, claim in ipairs(claims) do reserve(claim, KEYS[first + claim.list - 1]) end
  for i, stage in ipairs(stages) do
    redis.call('RENAME', stage.content, KEYS[first + list_count + i - 1])
    drop(t, stage.name, stage.content)
  end
  redis.call('HSET', t.open, producer, opening)
  redis.call('HSET', t.phase, producer, 0)
end

local function finish_all()
  for _, claim in ipairs(claims) do
    local members = members_in(claim.live)
    table.sort(members)
    finish(claim.q, claim.h, load(claim.q, members), now, DELETED)
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
return '\0' .. (large and '\1' or '\0') .. kept
