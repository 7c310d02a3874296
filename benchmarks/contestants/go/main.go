// A server of the standard library that answers with a constant document: the port and the body
// are its arguments.
package main

import (
	"log"
	"net/http"
	"os"
	"strings"
)

func main() {
	body := []byte(os.Args[2])
	http.HandleFunc("/metadata/scheduledevents", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if !strings.EqualFold(r.Header.Get("Metadata"), "true") {
			w.WriteHeader(http.StatusBadRequest)
			w.Write([]byte(`{"error":"Bad request: . Required metadata header not specified"}`))
			return
		}
		w.Write(body)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
