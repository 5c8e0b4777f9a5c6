// A crawler of one screen: fetches URLs one after another with gowarc, the library that fetches,
// looks up and writes WARCs in Zeno. Its flags are those of Zeno.
package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"

	warc "github.com/internetarchive/gowarc"
)

func main() {
	directory := flag.String("d", "", "where WARCs go")
	doppelganger := flag.String("warc-doppelganger-dedupe-server", "", "URL")
	cdx := flag.String("warc-cdx-dedupe-server", "", "URL")
	cookie := flag.String("warc-cdx-cookie", "", "NAME=VALUE")
	algorithm := flag.String("warc-digest-algorithm", "sha256", "sha1 or sha256")
	flag.Parse()
	if err := crawl(*directory, *doppelganger, *cdx, *cookie, *algorithm, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func crawl(directory, doppelganger, cdx, cookie, algorithm string, urls []string) error {
	rotator := warc.NewRotatorSettings()
	rotator.Prefix, rotator.OutputDirectory = "GOWARC", directory
	digest := warc.SHA256Base16
	if algorithm == "sha1" {
		digest = warc.SHA1
	}
	client, err := warc.NewWARCWritingHTTPClient(warc.HTTPClientSettings{
		RotatorSettings: rotator,
		DigestAlgorithm: digest,
		TempDir:         directory,
		DedupeOptions: warc.DedupeOptions{
			SizeThreshold:      1024,
			DoppelgangerDedupe: doppelganger != "",
			DoppelgangerHost:   doppelganger,
			CDXDedupe:          cdx != "",
			CDXURL:             cdx,
			CDXCookie:          cookie,
		},
	})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		var first error
		for problem := range client.ErrChan {
			if first == nil {
				first = problem.Err
			}
		}
		failed <- first
	}()
	for _, url := range urls {
		if err := fetch(client, url); err != nil {
			return err
		}
	}
	if err := client.Close(); err != nil {
		return err
	}
	return <-failed
}

func fetch(client *warc.CustomHTTPClient, url string) error {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}
