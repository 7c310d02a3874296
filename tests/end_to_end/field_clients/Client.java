// java Client.java URL: reads and approves by HttpURLConnection and by HttpClient, in each way.
import java.io.ByteArrayInputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.regex.Pattern;

public class Client {
  static void check(boolean holds, Object what) {
    if (!holds) throw new AssertionError(what);
  }

  static String field(String document, String name) {
    var found = Pattern.compile("\"" + name + "\":\"([^\"]+)\"").matcher(document);
    check(found.find(), document);
    return found.group(1);
  }

  static HttpURLConnection opened(String url) throws Exception {
    var connection = (HttpURLConnection) URI.create(url).toURL().openConnection();
    connection.setRequestProperty("Metadata", "true");
    return connection;
  }

  public static void main(String[] arguments) throws Exception {
    var url = arguments[0];
    var document = new String(opened(url).getInputStream().readAllBytes());
    ZonedDateTime.parse(field(document, "NotBefore"), DateTimeFormatter.RFC_1123_DATE_TIME);
    var body = "{\"StartRequests\":[{\"EventId\":\"" + field(document, "EventId") + "\"}]}";
    for (var way : List.of("length", "chunks", "expect")) {
      var connection = opened(url);
      connection.setRequestMethod("POST");
      connection.setDoOutput(true);
      if (way.equals("chunks")) connection.setChunkedStreamingMode(0);
      if (way.equals("expect")) {
        connection.setRequestProperty("Expect", "100-Continue");
        connection.setFixedLengthStreamingMode(body.length());
      }
      try (OutputStream out = connection.getOutputStream()) {
        out.write(body.getBytes());
      }
      check(connection.getResponseCode() == 200, way);
      check(connection.getInputStream().readAllBytes().length == 0, way);
    }
    for (var version : HttpClient.Version.values()) {
      var client = HttpClient.newBuilder().version(version).build();
      var asked = HttpRequest.newBuilder(URI.create(url)).header("Metadata", "true");
      var read = client.send(asked.copy().build(), BodyHandlers.ofString());
      check(read.statusCode() == 200 && read.body().contains("EventId"), version);
      var stream = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body.getBytes()));
      for (BodyPublisher sent : List.of(BodyPublishers.ofString(body), stream)) {
        for (var expects : List.of(false, true)) {
          var post = asked.copy().expectContinue(expects).POST(sent).build();
          var answer = client.send(post, BodyHandlers.ofString());
          check(answer.statusCode() == 200 && answer.body().isEmpty(), answer);
        }
      }
    }
  }
}
