-- SPDX-License-Identifier: Apache-2.0
-- wrk script: the same request over and over. Arguments: METHOD PATH [BODY]; {n} in the path runs from 0 to 7.
-- METHOD CLAIM+DELETE posts a claim, and deletes by ids what it got in the next request; CLAIM+SETTLE settles it.
-- METHOD CLAIM+KEEP writes the claims that it gets into the file CLAIMS, and SETTLE settles those, and asks nothing else.
-- QUEUES and TENANTS in the environment: how many of each are taken in turn (8 and 1). PAUSE: milliseconds for which a
-- connection waits between two requests, on average (0).
-- AUTHORIZATION: what the header of that name says, if it is to be sent. CONTENT_TYPE: the same, if it is not JSON.
-- Prints one line for bench/http.py, and one for bench/table.py.
local turn = 0
local claimed = {}
local queues, tenants = tonumber(os.getenv("QUEUES") or 8), tonumber(os.getenv("TENANTS") or 1)
local pause = tonumber(os.getenv("PAUSE") or 0)

local function remember(status, _, answer)
  local ids = {}
  for id in (answer or ""):gmatch('"id": ?"(%x+)"') do
    ids[#ids + 1] = id
  end
  if #ids > 0 then
    claimed[#claimed + 1] = answer:match('(/v2/queues/[^/]+/messages)/') .. "?ids=" .. table.concat(ids, ",")
  end
end

local function remember_claim(status, answered, answer)
  local place = answered["Location"] or answered["location"]
  if status == 201 and place and answer:find('"id"', 1, true) then
    claimed[#claimed + 1] = place:match("/v2/queues/[^?]+") .. "/settle"
  end
end

local function keep_claim(...)
  remember_claim(...)
  if #claimed > 0 then
    kept:write(table.remove(claimed), "\n")
    kept:flush()
  end
end

local function kept_claims()
  local places = {}
  for place in io.lines(os.getenv("CLAIMS")) do
    places[#places + 1] = place
  end
  for at = #places, 1, -1 do -- the first is settled first
    claimed[#claimed + 1] = places[at]
  end
end

local function as_tenant_of(number)
  if tenants > 1 then
    headers["X-Project-ID"] = "bench" .. number % tenants
  end
end

local threads = {}
function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  method, path, body = args[1], args[2], args[3]
  dry = 0 -- requests for which no claim was left
  headers = {
    ["Client-ID"] = "5d0c1f7e4f1e4d3c8a56b8b0f3a1c2d4",
    ["X-Project-ID"] = "bench",
    ["Content-Type"] = os.getenv("CONTENT_TYPE") or "application/json",
    ["Accept"] = "application/json",
    ["Authorization"] = os.getenv("AUTHORIZATION"),
  }
  if method == "CLAIM+DELETE" then
    method, response = "POST", remember
  elseif method == "CLAIM+SETTLE" then
    method, response, settles = "POST", remember_claim, true
  elseif method == "CLAIM+KEEP" then
    method, response, kept = "POST", keep_claim, io.open(os.getenv("CLAIMS"), "w")
  elseif method == "SETTLE" then
    settles, alone = true, true
    kept_claims()
  end
  math.randomseed(os.time())
  if pause > 0 then
    delay = function()
      return -math.log(1 - math.random()) * pause
    end
  end
end

function request()
  if #claimed > 0 then
    local place = table.remove(claimed)
    as_tenant_of(tonumber(place:match("/queues/%D*(%d+)/")))
    if settles then
      return wrk.format("POST", place, headers, '{"delete": "*"}')
    end
    return wrk.format("DELETE", place, headers)
  end
  turn = (turn + 1) % queues
  as_tenant_of(turn)
  if alone then
    dry = dry + 1
    return wrk.format("GET", "/v2/queues/bq" .. turn .. "/messages", headers)
  end
  return wrk.format(method, (path:gsub("{n}", turn)), headers, body)
end

function done(summary, latency, requests)
  local failed = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format("RATE %.1f %.3f %.3f %d\n", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, failed))
  local without = 0
  for _, thread in ipairs(threads) do
    without = without + thread:get("dry")
  end
  local answer = summary.bytes / math.max(1, summary.requests)
  io.write(string.format("TAIL %.3f %.1f %d\n", latency:percentile(99.9) / 1000, answer, without))
end
