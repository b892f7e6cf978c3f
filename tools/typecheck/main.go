// Command typecheck checks whether all packages of a module and their tests compile on other systems:
//
//	go -C tools run ./typecheck .. windows darwin
//
// It reads the declarations of imported packages from source. go vet compiles all of them first, which takes 5
// minutes of CPU on a new machine, for each system.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages" // by the Go project: loads packages with their tests, for any system
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: typecheck DIRECTORY GOOS...")
	}
	failed := false
	for _, system := range os.Args[2:] {
		n, err := check(os.Args[1], system)
		if err != nil {
			log.Fatalf("GOOS=%s: %v", system, err)
		}
		if n > 0 {
			failed = true
			log.Printf("%d errors on GOOS=%s", n, system)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check prints the errors of the module in a directory for a system.
func check(dir, system string) (errors int, err error) {
	here, err := filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	inModule := func(path string) bool { return strings.HasPrefix(path, here+string(filepath.Separator)) }
	list, err := packages.Load(&packages.Config{
		Mode: packages.LoadAllSyntax, Tests: true, Dir: here,
		Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system),
		ParseFile: func(files *token.FileSet, path string, src []byte) (*ast.File, error) {
			file, err := parser.ParseFile(files, path, src, parser.SkipObjectResolution)
			if file != nil && !inModule(path) {
				dropBodies(file)
			}
			return file, err
		},
	}, "./...")
	if err != nil {
		return 0, err
	}
	if len(list) == 0 {
		return 0, fmt.Errorf("no packages in %s", here)
	}
	seen := map[string]bool{} // a file can be in a package, and again in the package of its tests
	for _, p := range list {
		if strings.HasSuffix(p.PkgPath, ".test") {
			continue // a generated main, whose bodies were dropped
		}
		for _, e := range p.Errors {
			if text := e.Error(); !seen[text] {
				seen[text] = true
				log.Print(text)
				errors++
			}
		}
	}
	return errors, nil
}

// dropBodies keeps only the declarations of a file.
func dropBodies(file *ast.File) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			f.Body = nil
		}
	}
}
