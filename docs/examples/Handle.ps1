# Runs DRAIN before this machine goes down, approves, and runs RECOVER when it is over.
# Usage: ./Handle.ps1 -Drain ./drain.ps1 -Recover ./recover.ps1
param([Parameter(Mandatory)] [string] $Drain, [Parameter(Mandatory)] [string] $Recover)
$ErrorActionPreference = 'Stop'

$endpoint = if ($env:FOREWARN_ENDPOINT) { $env:FOREWARN_ENDPOINT } else { 'http://169.254.169.254' }
$events = "$endpoint/metadata/scheduledevents?api-version=2020-07-01"
$named = "$endpoint/metadata/instance/compute/name?api-version=2021-02-01&format=text"

function Ask([string] $Uri, [int] $Seconds, [string] $Body) {
    $how = @{
        Uri = $Uri; Headers = @{ Metadata = 'true' }; TimeoutSec = $Seconds
        NoProxy = $true; MaximumRedirection = 0
    }
    if ($Body) { $how += @{ Method = 'Post'; Body = $Body; ContentType = 'application/json' } }
    Invoke-RestMethod @how
}

# The name that events use: the host's own name may be another.
$name = $null
while (-not $name) {
    try { $name = Ask $named 150 } catch { Write-Warning $_; Start-Sleep 1 }
}

$handled = [System.Collections.Generic.HashSet[string]]::new()
$patience = 150 # the first answer may take two minutes, while the cloud turns events on
while ($true) {
    try {
        $document = Ask $events $patience
        # What is no document, such as a proxy's own page, says nothing: least of all that it is over.
        if ($document.PSObject.Properties.Name -notcontains 'Events') { throw 'no document' }
    } catch {
        Write-Warning $_
        Start-Sleep 1
        continue
    }
    $patience = 10
    foreach ($event in $document.Events) {
        $id = $event.EventId.ToUpperInvariant()
        # -contains compares without regard to case, as names are compared here.
        if ($event.EventStatus -ne 'Scheduled' -or $event.Resources -notcontains $name) { continue }
        if (-not $handled.Add($id)) { continue }
        & $Drain $id
        $body = @{ StartRequests = @(@{ EventId = $id }) } | ConvertTo-Json -Depth 3 -Compress
        # Sent again until it is confirmed; however often it arrives, it counts once.
        foreach ($try in 1..60) {
            try { Ask $events 10 $body | Out-Null; break } catch { Write-Warning $_; Start-Sleep 1 }
        }
    }
    $listed = @($document.Events | ForEach-Object { $_.EventId.ToUpperInvariant() })
    foreach ($id in @($handled)) {
        if ($listed -notcontains $id) { [void] $handled.Remove($id); & $Recover $id }
    }
    Start-Sleep 1
}
