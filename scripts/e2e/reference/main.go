// Reads and writes a claims table as a Go provider does: encoding/json into structs of the table's fields, times as
// k8s.io/apimachinery's metav1.Time handles them (null is the zero time, RFC 3339 in whole seconds when written).
//
//	reference write FILE   reads a table from stdin and writes it to FILE, mode 0600
//	reference read FILE    reads FILE and prints what it understood of it
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// Time is metav1.Time as far as JSON is concerned.
type Time struct{ time.Time }

func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC().Format(time.RFC3339))
}

func (t *Time) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		t.Time = time.Time{}
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return err
	}
	t.Time = parsed.Local()
	return nil
}

// OwnerReference is metav1.OwnerReference.
type OwnerReference struct {
	APIVersion         string `json:"apiVersion"`
	Kind               string `json:"kind"`
	Name               string `json:"name"`
	UID                string `json:"uid"`
	Controller         *bool  `json:"controller,omitempty"`
	BlockOwnerDeletion *bool  `json:"blockOwnerDeletion,omitempty"`
}

type claim struct {
	ID        string          `json:"id"`
	Token     string          `json:"token"`
	Address   string          `json:"address"`
	PodUID    string          `json:"podUID"`
	Authority string          `json:"authority,omitempty"`
	ClaimedAt Time            `json:"claimedAt"`
	Deadline  Time            `json:"deadline"`
	Owner     *OwnerReference `json:"owner,omitempty"`
}

type table struct {
	Claims    map[string]*claim `json:"claims"`
	Releasing []*claim          `json:"releasing,omitempty"`
}

// An older table has no times, no authority and no owner.
type olderClaim struct {
	ID      string `json:"id"`
	Token   string `json:"token"`
	Address string `json:"address"`
	PodUID  string `json:"podUID"`
}

func run(verb, path string) error {
	switch verb {
	case "write":
		var in table
		if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
			return err
		}
		out := map[string]any{"claims": map[string]any{}}
		claims := out["claims"].(map[string]any)
		for key, c := range in.Claims {
			if c.Authority == "" {
				claims[key] = olderClaim{c.ID, c.Token, c.Address, c.PodUID}
			} else {
				claims[key] = c
			}
		}
		if len(in.Releasing) > 0 {
			out["releasing"] = in.Releasing
		}
		data, err := json.Marshal(out)
		if err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o600)
	case "read":
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		data, err := io.ReadAll(file)
		if err != nil {
			return err
		}
		var in table
		if err := json.Unmarshal(data, &in); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(in)
	}
	return fmt.Errorf("usage: reference write|read FILE")
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: reference write|read FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
