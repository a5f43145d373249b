# Sends two requests to a URL with the client and the longest wait of the arguments, and prints the statuses that it gets.
import sys

client, url, longest = sys.argv[1], sys.argv[2], float(sys.argv[3])

if client == "urllib3":
    import urllib3

    retries = urllib3.Retry(3, status_forcelist=[429], retry_after_max=longest, raise_on_status=False)
    pool = urllib3.PoolManager()
    get = lambda: pool.request("GET", url, retries=retries).status
elif client == "httpx":
    import httpx
    from httpx_retries import Retry, RetryTransport

    transport = RetryTransport(retry=Retry(total=3, max_backoff_wait=longest))
    session = httpx.Client(transport=transport, timeout=60)
    get = lambda: session.get(url).status_code

print(get(), get())
