{{/* Egress of every pod: DNS and the user's extraEgress. The node mounts the storage, so a pod needs no rule for it. With a
     rule, a program that speaks NFS would be root on the whole file system. */}}
{{- define "paddle-training.egressCommon" -}}
# The address of the DNS servers depends on the cluster, so only the port is restricted.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Egress for a source or an export. Takes (dict "root" $ "url" <the source or the target>). */}}
{{- define "paddle-training.egressUrl" -}}
{{- if regexMatch "^(https?|s3)://" .url }}
- to: {{- include "paddle-training.blocks" .root.Values.networkPolicy.sourceCidrs | trim | nindent 4 }}
  ports:
    - {port: 443, protocol: TCP}
    {{- if hasPrefix "http://" .url }}
    - {port: 80, protocol: TCP}
    {{- end }}
{{- end }}
{{- if hasPrefix "s3://" .url }}
# The node's pod identity agent, which returns the credentials of the pods' role.
- to: [{ipBlock: {cidr: 169.254.170.23/32}}]
  ports: [{port: 80, protocol: TCP}]
{{- end }}
{{- end -}}

{{/* Egress for data.source and data.testSource. */}}
{{- define "paddle-training.egressSources" -}}
{{- range list .Values.data.source .Values.data.testSource -}}
{{- include "paddle-training.egressUrl" (dict "root" $ "url" .) -}}
{{- end -}}
{{- end -}}

{{/* The address of the node's metadata service if a CIDR contains it, else nothing. Takes the CIDR. Compares the bits of
     the prefix, group by group. */}}
{{- define "paddle-training.metadataIn" -}}
{{- $parts := splitList "/" . -}}
{{- $length := last $parts | int64 -}}
{{- $isIpv6 := contains ":" . -}}
{{- $groups := list -}}
{{- if $isIpv6 -}}
{{- $halves := splitList "::" (first $parts) -}}
{{- $left := first $halves | splitList ":" | compact -}}
{{- $right := rest $halves | join "" | splitList ":" | compact -}}
{{- $zeros := list -}}
{{- range until (sub 8 (add (len $left) (len $right)) | max 0 | int) -}}{{- $zeros = append $zeros "0" -}}{{- end -}}
{{- range concat $left $zeros $right -}}{{- $groups = append $groups (printf "0x%s" . | int64) -}}{{- end -}}
{{- else -}}
{{- range splitList "." (first $parts) -}}{{- $groups = append $groups (regexReplaceAll "^0+(.)" . "${1}" | int64) -}}{{- end -}}
{{- end -}}
{{- $width := ternary 16 8 $isIpv6 -}}
{{- $isInside := true -}}
{{- range $i, $group := ternary (list 0xfd00 0x0ec2 0 0 0 0 0 0x0254) (list 169 254 169 254) $isIpv6 -}}
{{- $size := 1 -}}
{{- range until (sub $width (sub $length (mul $i $width) | max 0 | min $width) | int) -}}{{- $size = mul $size 2 -}}{{- end -}}
{{- if ne (div (index $groups $i) $size) (div $group $size) -}}{{- $isInside = false -}}{{- end -}}
{{- end -}}
{{- if $isInside -}}{{ ternary "fd00:ec2::254/128" "169.254.169.254/32" $isIpv6 }}{{- end -}}
{{- end -}}

{{/* CIDRs as peers of a rule, without the node's metadata service, which returns the credentials of the node's role. */}}
{{- define "paddle-training.blocks" -}}
{{- range . }}
- ipBlock:
    cidr: {{ . | quote }}
    {{- with include "paddle-training.metadataIn" . }}
    except: [{{ . | quote }}]
    {{- end }}
{{- end }}
{{- end -}}
