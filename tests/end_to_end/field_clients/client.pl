# perl client.pl URL: reads and approves by HTTP::Tiny, with a length and in chunks.
use strict;
use warnings;
use HTTP::Tiny;
use JSON::PP;

my ($url) = @ARGV;
my $http = HTTP::Tiny->new(proxy => undef);
my %headers = (Metadata => 'true');
my $read = $http->get($url, {headers => \%headers});
die $read->{status} unless $read->{status} == 200;
my @events = @{decode_json($read->{content})->{Events}} or die 'no events';
my $body = encode_json({StartRequests => [map { {EventId => $_->{EventId}} } @events]});
my @parts = (substr($body, 0, 9), substr($body, 9));
for my $content ($body, sub { shift @parts }) {
    my $posted = $http->post($url, {headers => \%headers, content => $content});
    die "$posted->{status} $posted->{content}" unless $posted->{status} == 200 && !$posted->{content};
}
