-- Requests for wrk: one for each line of a file, in turn, round and round.
--   wrk -s wrk.lua URL -- FILE PAUSE [HEADER VALUE]...
-- FILE holds paths to GET, JSON bodies to POST to /lookup, or paths, a space and JSON bodies. PAUSE is the share of requests
-- before which a client rests a millisecond, or, from 1 on, the milliseconds that it rests before each; 0 is full load.
local requests, at = {}, 0

function init(args)
  for place = 3, #args, 2 do wrk.headers[args[place]] = args[place + 1] end
  for line in io.lines(args[1]) do
    local path, body = line:match("^([^ {]*) ?({.*)$")
    if body then
      local headers = {["Content-Type"] = "application/json"}
      requests[#requests + 1] = wrk.format("POST", path ~= "" and path or "/lookup", headers, body)
    else
      requests[#requests + 1] = wrk.format("GET", line)
    end
  end
  local pause = tonumber(args[2])
  if pause > 0 then
    math.randomseed(7)
    function delay()
      if pause >= 1 then return pause end
      return math.random() < pause and 1 or 0
    end
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    "\nRESULT %d %d %d %.0f %.0f %.0f\n", summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency.max))
end
