// node client.mjs URL: reads and approves by fetch, with its tag, and by http, in chunks.
import assert from "node:assert";
import http from "node:http";

const url = process.argv[2];
const headers = { Metadata: true, "Content-Type": "application/json" };
const read = await fetch(url, { headers: { ...headers, "If-None-Match": 0 } });
assert.equal(read.status, 200);
const { Events } = await read.json();
assert.ok(Events.length);
for (const event of Events) assert.ok(Date.parse(event.NotBefore) > Date.now());
const body = JSON.stringify({ StartRequests: Events.map(({ EventId }) => ({ EventId })) });
const tag = read.headers.get("etag");
const again = await fetch(url, { headers: { ...headers, "If-None-Match": tag } });
assert.equal(again.status, 304);
const posted = await fetch(url, {
  method: "post",
  headers: { ...headers, "If-None-Match": tag },
  body,
});
assert.deepEqual([posted.status, await posted.text()], [200, ""]);

for (const more of [{}, { Connection: "close" }, { Expect: "100-continue" }]) {
  const answer = await new Promise((resolve, reject) => {
    const request = http.request(url, { method: "POST", headers: { ...headers, ...more } });
    request.on("response", (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode));
    });
    request.on("error", reject);
    request.write(body.slice(0, 9)); // without a length: in chunks
    request.end(body.slice(9));
  });
  assert.equal(answer, 200);
}
