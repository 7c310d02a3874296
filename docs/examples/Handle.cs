// Runs DRAIN before this machine goes down, approves, and runs RECOVER when it is over.
// Usage: Handle.exe DRAIN RECOVER; it keeps handle.state in $STATE_DIRECTORY, or in this folder
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Net;
using System.Text;
using System.Threading;
using Newtonsoft.Json;
using Newtonsoft.Json.Linq;

static class Handle
{
    const int FirstAnswerSeconds = 150; // the cloud may take two minutes to turn events on
    const int AnswerSeconds = 10;
    const int ApprovalTries = 60;

    static readonly string Endpoint =
        Environment.GetEnvironmentVariable("FOREWARN_ENDPOINT") ?? "http://169.254.169.254";
    static readonly string Events =
        Endpoint + "/metadata/scheduledevents?api-version=2020-07-01";
    static readonly string Name =
        Endpoint + "/metadata/instance/compute/name?api-version=2021-02-01&format=text";

    static readonly string Kept = Path.Combine(
        Environment.GetEnvironmentVariable("STATE_DIRECTORY") ?? ".", "handle.state");

    static string Ask(string url, int seconds, string body = null)
    {
        var request = (HttpWebRequest)WebRequest.Create(url);
        request.Proxy = null;
        request.AllowAutoRedirect = false;
        request.Timeout = request.ReadWriteTimeout = seconds * 1000;
        request.Headers["Metadata"] = "true";
        if (body != null)
        {
            request.Method = "POST";
            request.ContentType = "application/json";
            request.ServicePoint.Expect100Continue = false;
            var bytes = Encoding.UTF8.GetBytes(body);
            using (var stream = request.GetRequestStream())
                stream.Write(bytes, 0, bytes.Length);
        }
        using (var response = (HttpWebResponse)request.GetResponse())
        using (var reader = new StreamReader(response.GetResponseStream()))
        {
            if (response.StatusCode != HttpStatusCode.OK)
                throw new WebException("status " + (int)response.StatusCode);
            return reader.ReadToEnd();
        }
    }

    static T Until<T>(Func<T> attempt, int tries = int.MaxValue)
    {
        for (var number = 1; ; number++)
        {
            try
            {
                return attempt();
            }
            catch (Exception error)
            {
                if (!(error is WebException || error is IOException || error is JsonException)
                    || number >= tries)
                    throw;
                Console.Error.WriteLine(error.Message);
                Thread.Sleep(1000);
            }
        }
    }

    // Only a document counts: a proxy's own page does not mean that an event is over.
    static JArray Listed(int seconds)
    {
        var listed = JObject.Parse(Ask(Events, seconds))["Events"] as JArray;
        if (listed == null)
            throw new JsonReaderException("the answer has no Events");
        return listed;
    }

    static string Id(JToken listed)
    {
        return ((string)listed["EventId"]).ToUpperInvariant();
    }

    static void Approve(string id)
    {
        var request = new { StartRequests = new[] { new { EventId = id } } };
        // Sent again until it is confirmed; however often it arrives, it counts once.
        Until(() => Ask(Events, AnswerSeconds, JsonConvert.SerializeObject(request)),
            ApprovalTries);
    }

    static void Run(string command, string id)
    {
        using (var process = Process.Start(new ProcessStartInfo(command, id)
            { UseShellExecute = false }))
        {
            process.WaitForExit();
            if (process.ExitCode != 0)
                throw new InvalidOperationException(command + " ended with " + process.ExitCode);
        }
    }

    // The reboot that was approved ends this process: the next one undoes what it drained.
    static void Save(IEnumerable<string> inHand)
    {
        File.WriteAllLines(Kept + ".new", inHand);
        if (File.Exists(Kept))
            File.Replace(Kept + ".new", Kept, null);
        else
            File.Move(Kept + ".new", Kept);
    }

    // Whatever fails, wait for the next event.
    static void Try(Action action, string otherwise)
    {
        try
        {
            action();
        }
        catch (Exception error)
        {
            Console.Error.WriteLine(otherwise + ": " + error.Message);
        }
    }

    static void Main(string[] arguments)
    {
        // The name in events: the host name may differ.
        var name = Until(() => Ask(Name, FirstAnswerSeconds));
        var inHand = new HashSet<string>(File.Exists(Kept) ? File.ReadAllLines(Kept) : new string[0]);
        var before = new HashSet<string>(inHand); // two documents in a row confirm an end
        var seen = new HashSet<string>(); // by this process
        var patience = FirstAnswerSeconds;
        while (true)
        {
            var seconds = patience;
            var listed = Until(() => Listed(seconds));
            patience = AnswerSeconds;
            foreach (var each in listed.Where(each => (string)each["EventStatus"] == "Scheduled"
                && each["Resources"].Any(machine => string.Equals(
                    (string)machine, name, StringComparison.OrdinalIgnoreCase))))
            {
                var id = Id(each);
                if (!seen.Add(id))
                    continue;
                inHand.Add(id);
                Try(() => Save(inHand), Kept + " is not saved");
                Try(() => { Run(arguments[0], id); Approve(id); },
                    id + " is not approved, and starts when its notice is over");
            }
            var present = new HashSet<string>(listed.Select(Id));
            foreach (var id in inHand.Where(
                id => !present.Contains(id) && !before.Contains(id)).ToList())
            {
                inHand.Remove(id);
                if (inHand.Count == 0)
                    Try(() => Run(arguments[1], id), "not recovered after " + id);
                Try(() => Save(inHand), Kept + " is not saved");
            }
            before = present;
            Thread.Sleep(1000);
        }
    }
}
