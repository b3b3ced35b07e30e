// A stand-in for wisp-runtime in the operator's cluster tests: same flags, same /livez /readyz /state, no model.
//
// How it behaves is said in the environment: FAKE_READY_AFTER=2s, FAKE_EXIT="3 DoesNotFit needs 17 GiB",
// FAKE_EAT=true (memory until the kernel ends it), FAKE_RUNNING=4 (requests it claims to run).
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func flag(name, fallback string) string {
	for i, argument := range os.Args {
		if argument == name && i+1 < len(os.Args) {
			return os.Args[i+1]
		}
	}
	return fallback
}

func fail(spec string) {
	parts := strings.SplitN(spec, " ", 3)
	code, _ := strconv.Atoi(parts[0])
	if len(parts) == 3 {
		text, _ := json.Marshal(map[string]any{"reason": parts[1], "message": parts[2], "details": map[string]any{}})
		os.WriteFile(flag("--termination-log", "/dev/termination-log"), text, 0o644)
	}
	os.Exit(code)
}

func eat() {
	var kept [][]byte
	for {
		block := make([]byte, 8<<20)
		for i := range block {
			block[i] = 1
		}
		kept = append(kept, block)
	}
}

func phases(ready bool, took float64) []map[string]any {
	state := "running"
	if ready {
		state = "done"
	}
	done := func(name string) map[string]any {
		return map[string]any{"name": name, "seconds": 0.1, "state": "done", "bytes": 0, "totalBytes": 0}
	}
	weights := map[string]any{"name": "weights", "seconds": took, "state": state, "bytes": 40, "totalBytes": 100}
	found := []map[string]any{done("import"), done("pull"), weights}
	if ready {
		found = append(found, done("kernels"), done("firstToken"))
	}
	return found
}

func main() {
	if spec := os.Getenv("FAKE_EXIT"); spec != "" {
		fail(spec)
	}
	if os.Getenv("FAKE_EAT") != "" {
		eat()
	}
	wait, err := time.ParseDuration(os.Getenv("FAKE_READY_AFTER"))
	if err != nil {
		wait = 500 * time.Millisecond
	}
	running, _ := strconv.Atoi(os.Getenv("FAKE_RUNNING"))
	begun := time.Now()
	ready := func() bool { return time.Since(begun) >= wait }
	http.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) {})
	http.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if !ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/state", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := map[bool]string{true: "ready", false: "loading"}[ready()]
		json.NewEncoder(w).Encode(map[string]any{
			"model": flag("--served-name", ""), "device": "cpu", "status": status, "phases": phases(ready(), wait.Seconds()),
			"ledger": map[string]any{"fits": true, "weightsBytes": 1000, "kvBytesPerToken": 10, "maxContext": 2048,
				"maxConcurrentAtContext": 8, "headroomBytes": 500, "message": "Fits."},
			"load": map[string]any{"waiting": 0, "running": running, "kvBlocksUsed": 1, "kvBlocksTotal": 10, "tokensPerSecond": 0},
		})
	})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go http.ListenAndServe(":"+flag("--port", "8000"), nil)
	<-stop
}
