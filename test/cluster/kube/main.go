// kube is one file that is every Kubernetes program a test cluster runs, and the two clients people use with it.
//
// One link of a hundred megabytes instead of eight. It changes only with go.mod, so the harness keeps it in a cache.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	helm "helm.sh/helm/v4/pkg/cmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(args []string) int{
	"etcd": func(args []string) int {
		etcdmain.Main(append([]string{"etcd"}, args...))
		return 0
	},
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              run(proxy.NewProxyCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl": func(args []string) int {
		command := kubectl.NewDefaultKubectlCommand()
		command.SetArgs(args)
		if err := cli.RunNoErrOutput(command); err != nil {
			kubectlutil.CheckErr(err)
		}
		return 0
	},
	"helm": func(args []string) int {
		command, err := helm.NewRootCmd(os.Stdout, args, helm.SetupLogging)
		if err != nil {
			slog.Error("helm can't start", "error", err)
			return 1
		}
		if err := command.Execute(); err != nil {
			return 1
		}
		return 0
	},
}

func run(build func() *cobra.Command) func([]string) int {
	return func(args []string) int {
		command := build()
		command.SetArgs(args)
		return cli.Run(command)
	}
}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if _, known := programs[name]; !known && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	program, known := programs[name]
	if !known {
		names := []string{}
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kube PROGRAM [ARG ...], where PROGRAM is one of %v\n", names)
		os.Exit(2)
	}
	// kubectl and helm look at os.Args for plugins and completions.
	os.Args = append([]string{name}, args...)
	os.Exit(program(args))
}
