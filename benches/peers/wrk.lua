-- Each request has one of 10,000 keys. The requests are written once, so that wrk spends its time sending them.

local requests = {}

function init()
    for n = 1, 10000 do
        requests[n] = wrk.format("GET", nil, { ["x-api-key"] = string.format("client-w-%011d", n) })
    end
end

function request()
    return requests[math.random(#requests)]
end
