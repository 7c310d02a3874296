# Runs DRAIN before this machine goes down, approves, and runs RECOVER when it is over.
# Usage: ./Handle.ps1 -Drain ./drain.ps1 -Recover ./recover.ps1
# It keeps handle.state in $env:STATE_DIRECTORY, or in this folder.
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

function Say([string] $Text) { [Console]::Error.WriteLine($Text) }

# Tells whether it ended well: a program by its exit code, a script also by throwing nothing.
function Run([string] $Command, [string] $Id) {
    $global:LASTEXITCODE = 0
    try { & $Command $Id | Out-Host } catch { Say "$Command failed: $_"; return $false }
    if ($LASTEXITCODE -ne 0) { Say "$Command ended with $LASTEXITCODE" }
    $LASTEXITCODE -eq 0
}

# Sent again until it is confirmed; however often it arrives, it counts once.
function Approve([string] $Id) {
    $body = @{ StartRequests = @(@{ EventId = $Id }) } | ConvertTo-Json -Depth 3 -Compress
    foreach ($try in 1..60) {
        try { Ask $events 10 $body | Out-Null; return $true } catch { Say $_; Start-Sleep 1 }
    }
    $false
}

# The name in events: the host name may differ.
$name = $null
while (-not $name) {
    try { $name = Ask $named 150 } catch { Say $_; Start-Sleep 1 }
}

# The reboot that was approved ends this process: the next one undoes what it drained.
$kept = Join-Path $(if ($env:STATE_DIRECTORY) { $env:STATE_DIRECTORY } else { '.' }) 'handle.state'
function Save {
    try {
        Set-Content "$kept.new" @($inHand)
        Move-Item -Force "$kept.new" $kept
    } catch { Say "$kept is not saved: $_" }
}

$inHand = [System.Collections.Generic.HashSet[string]]::new()
if (Test-Path $kept) { Get-Content $kept | Where-Object { $_ } | ForEach-Object { [void] $inHand.Add($_) } }
$seen = [System.Collections.Generic.HashSet[string]]::new() # by this process
$before = @($inHand) # the ids of the document before: two in a row confirm that an event is over
$patience = 150 # the first answer may take two minutes, while the cloud turns events on
while ($true) {
    try {
        $document = Ask $events $patience
        # Only a document counts: a proxy's own page does not mean that an event is over.
        if ($document.PSObject.Properties.Name -notcontains 'Events') { throw 'no document' }
    } catch {
        Say $_
        Start-Sleep 1
        continue
    }
    $patience = 10
    foreach ($event in $document.Events) {
        $id = $event.EventId.ToUpperInvariant()
        # -contains compares without regard to case, as names are compared here.
        if ($event.EventStatus -ne 'Scheduled' -or $event.Resources -notcontains $name) { continue }
        if (-not $seen.Add($id)) { continue }
        [void] $inHand.Add($id)
        Save
        # Whatever fails, wait for the next event.
        if (-not ((Run $Drain $id) -and (Approve $id))) {
            Say "$id is not approved, and starts when its notice is over"
        }
    }
    $listed = @($document.Events | ForEach-Object { $_.EventId.ToUpperInvariant() })
    foreach ($id in @($inHand)) {
        if ($listed -contains $id -or $before -contains $id) { continue }
        [void] $inHand.Remove($id)
        if ($inHand.Count -eq 0) { [void] (Run $Recover $id) }
        Save
    }
    $before = $listed
    Start-Sleep 1
}
