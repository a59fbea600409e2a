// What Kubernetes' own allocator makes of problems: a JSON object a line in, an answer a line out, as aliquot-solve has them.
//
//	go run ./oracle/allocator < problems.jsonl > answers.jsonl
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type problem struct {
	ID       string              `json:"id"`
	Channel  string              `json:"channel"`
	Features structured.Features `json:"features"`
	Node     *core.Node          `json:"node"`
	// Others to ask when it is solved again.
	Nodes     []*core.Node              `json:"nodes"`
	Claims    []*resource.ResourceClaim `json:"claims"`
	Existing  []*resource.ResourceClaim `json:"existing"`
	Classes   classes                   `json:"classes"`
	Slices    []*resource.ResourceSlice `json:"slices"`
	TimeoutMs int                       `json:"timeoutMs"`
	Repeat    int                       `json:"repeat"`
}

type answer struct {
	ID         string                      `json:"id"`
	Outcome    string                      `json:"outcome"`
	Err        string                      `json:"err,omitempty"`
	Results    []resource.AllocationResult `json:"results,omitempty"`
	Micros     int64                       `json:"micros"`
	MeanMicros float64                     `json:"meanMicros,omitempty"`
}

type classes []*resource.DeviceClass

func (c classes) List() ([]*resource.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resource.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resource.Resource("deviceclasses"), name)
}

// allocated is what the scheduler would know of claims that have their devices.
func allocated(claims []*resource.ResourceClaim, shares bool) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case shares && result.ShareID != nil:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}

func solve(line []byte) (result answer) {
	var p problem
	// Objects that the API server would have refused can crash the allocator.
	defer func() {
		if crash := recover(); crash != nil {
			result = answer{ID: p.ID, Outcome: "crash", Err: fmt.Sprint(crash)}
		}
	}()
	if err := json.Unmarshal(line, &p); err != nil {
		return answer{ID: p.ID, Outcome: "badInput", Err: err.Error()}
	}
	if p.Channel == "" {
		structured.EnableAllocators()
	} else {
		structured.EnableAllocators(p.Channel)
	}
	ctx := context.Background()
	if p.TimeoutMs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(p.TimeoutMs)*time.Millisecond)
		defer cancel()
	}
	features := cel.Features{EnableConsumableCapacity: p.Features.ConsumableCapacity, EnableListTypeAttributes: p.Features.ListTypeAttributes}
	state := allocated(p.Existing, p.Features.ConsumableCapacity)
	result.ID = p.ID
	allocator, err := structured.NewAllocator(ctx, p.Features, state, p.Classes, p.Slices, cel.NewCache(100, features))
	if err == nil {
		start := time.Now()
		result.Results, err = allocator.Allocate(ctx, p.Node, p.Claims)
		result.Micros = time.Since(start).Microseconds()
		elsewhere := func() {
			for _, node := range p.Nodes {
				_, _ = allocator.Allocate(ctx, node, p.Claims)
			}
		}
		if p.Repeat > 0 {
			// What is the first time for a node isn't again.
			elsewhere()
		}
		start = time.Now()
		for range p.Repeat {
			_, _ = allocator.Allocate(ctx, p.Node, p.Claims)
			elsewhere()
		}
		if p.Repeat > 0 {
			result.MeanMicros = float64(time.Since(start).Nanoseconds()) / 1000 / float64(p.Repeat)
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		result.Outcome = "timeout"
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		result.Outcome = "nodeError"
	case err != nil:
		result.Outcome = "fatal"
	case len(result.Results) > 0:
		result.Outcome = "allocated"
	default:
		result.Outcome = "none"
	}
	if err != nil {
		result.Err = err.Error()
	}
	// They are random otherwise.
	share := types.UID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
	for _, allocation := range result.Results {
		for i := range allocation.Devices.Results {
			if allocation.Devices.Results[i].ShareID != nil {
				allocation.Devices.Results[i].ShareID = &share
			}
		}
	}
	return result
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<28)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		if err := answers.Encode(solve(lines.Bytes())); err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}
