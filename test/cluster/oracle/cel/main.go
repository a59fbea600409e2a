// What Kubernetes makes of device selectors: a JSON object a line with "expression", the name of a "device" of the file that is
// given, and "attribute" if it is to be a derived attribute; the same again with the answers.
//
//	go run ./oracle/cel ../../controller/cel/tests/expressions/devices.json < ../../controller/cel/tests/expressions/cases.jsonl > new.jsonl
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	celgo "github.com/google/cel-go/cel"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type line struct {
	Expression string `json:"expression"`
	Device     string `json:"device,omitempty"`
	Attribute  bool   `json:"attribute,omitempty"`

	// "true", "false", "value", "compileError" or "runtimeError".
	Outcome string                       `json:"outcome"`
	Value   *resourceapi.DeviceAttribute `json:"value,omitempty"`
	Cost    *uint64                      `json:"cost,omitempty"`
	Error   string                       `json:"error,omitempty"`
}

type device struct {
	Driver                   string                                                    `json:"driver"`
	AllowMultipleAllocations bool                                                      `json:"allowMultipleAllocations"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

func main() {
	if err := answerAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func answerAll() error {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	var devices map[string]device
	if err := json.Unmarshal(text, &devices); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<16), 1<<22)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for in.Scan() {
		var asked line
		if err := json.Unmarshal(in.Bytes(), &asked); err != nil {
			return fmt.Errorf("%s: %w", in.Text(), err)
		}
		asked = line{Expression: asked.Expression, Device: asked.Device, Attribute: asked.Attribute}
		name := asked.Device
		if name == "" {
			name = "gpu"
		}
		found, ok := devices[name]
		if !ok {
			return fmt.Errorf("no device %q", name)
		}
		answer(&asked, found)
		if err := out.Encode(asked); err != nil {
			return err
		}
	}
	return in.Err()
}

func answer(asked *line, on device) {
	// Optional elements of unknown type bring the checker down.
	defer func() {
		if cause := recover(); cause != nil {
			asked.Outcome, asked.Error = "compileError", fmt.Sprint("panic: ", cause)
		}
	}()
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	compiled := compiler.CompileCELExpression(asked.Expression, cel.Options{
		DisableCostEstimation: true,
		DerivedAttribute:      asked.Attribute,
	})
	if compiled.Error != nil {
		asked.Outcome, asked.Error = "compileError", compiled.Error.Detail
		return
	}
	input := cel.Device{
		Driver:                   on.Driver,
		AllowMultipleAllocations: &on.AllowMultipleAllocations,
		Attributes:               on.Attributes,
		Capacity:                 on.Capacity,
	}
	var details *celgo.EvalDetails
	var err error
	if asked.Attribute {
		asked.Outcome = "value"
		asked.Value, details, err = compiled.EvaluateDerivedAttribute(context.Background(), input)
	} else {
		var matches bool
		matches, details, err = compiled.DeviceMatches(context.Background(), input)
		asked.Outcome = fmt.Sprint(matches)
	}
	if err != nil {
		asked.Outcome, asked.Error, asked.Value = "runtimeError", err.Error(), nil
		return
	}
	if details != nil {
		asked.Cost = details.ActualCost()
	}
}
