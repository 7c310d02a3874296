-- What wrk counted and measured, as one line of JSON; nothing of it runs while it asks.
function done(summary, latency, requests)
   local failed = summary.errors
   io.write(string.format(
      'RESULT {"requests":%d,"seconds":%f,"connect":%d,"read":%d,"write":%d,"status":%d,' ..
      '"timeout":%d,"median_us":%d,"p99_us":%d}\n',
      summary.requests, summary.duration / 1e6, failed.connect, failed.read, failed.write,
      failed.status, failed.timeout, latency:percentile(50), latency:percentile(99)))
end
