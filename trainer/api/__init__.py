"""The library: `import trainer` offers what stands here, with exceptions where a command line would exit."""
