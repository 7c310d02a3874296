// mono Client.exe URL: reads and approves by WebClient, which expects 100-continue, as .NET does.
using System;
using System.Collections.Generic;
using System.Net;
using Newtonsoft.Json;

public class Document
{
    public string DocumentIncarnation;
    public List<Event> Events;
}

public class Event
{
    public string EventId;
    public DateTime? NotBefore;
}

public static class Client
{
    public static void Main(string[] arguments)
    {
        WebRequest.DefaultWebProxy = null;
        string json;
        using (var client = new WebClient())
        {
            client.Headers.Add("Metadata", "true");
            json = client.DownloadString(arguments[0]);
        }
        var document = JsonConvert.DeserializeObject<Document>(json);
        if (document.Events[0].NotBefore == null) throw new Exception(json);
        var body = JsonConvert.SerializeObject(
            new { document.DocumentIncarnation, StartRequests = document.Events });
        using (var client = new WebClient())
        {
            client.Headers.Add("Metadata", "true");
            client.Headers.Add("Content-Type", "application/json");
            if (client.UploadString(arguments[0], body) != "") throw new Exception("a body");
        }
    }
}
